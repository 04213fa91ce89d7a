"""A wheel's tree contains exactly what the wheel contains, however it was built."""

from __future__ import annotations

import csv
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from danlu.errors import ChecksumError, DanluError, OutsideError, ResolveError
from danlu.graph.ops import WHEEL_TIME, InstallScheme, Wheel, WheelSource
from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.sources.pypi.dist_info import InvalidWheel
from danlu.sources.pypi.indexes import IndexSettings
from danlu.sources.pypi.split_wheels import (
    UnlistedFilesError,
    finish_tree,
    list_distributions,
    split_prefix,
    take_all,
)
from danlu.sources.pypi.unpack_wheels import unpack_wheels
from danlu.sources.pypi.uv import Uv
from tests.fakes.wheels import make_wheel, sha256_of

SCHEME = InstallScheme("/opt/venv", "3.11", "lib/python3.11/site-packages", "/opt/venv/bin/python")
SITE = "opt/venv/lib/python3.11/site-packages"


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_NO_CONFIG", "1")


class WheelUnpacker:
    """Unpacks wheels of one directory under one cache."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.links = root / "links"
        self.links.mkdir()
        self.count = 0

    def wheel(self, path: Path, *, scheme: InstallScheme = SCHEME, sha256: str = "") -> Wheel:
        name, version = path.name.split("-")[:2]
        source = WheelSource("index")
        return Wheel(
            name.replace("_", "-"), version, path.name, sha256 or sha256_of(path), source, scheme
        )

    def unpack(
        self,
        wheels: Sequence[Wheel],
        *,
        offline: bool = False,
        indexes: IndexSettings | None = None,
    ) -> list[Path]:
        indexes = indexes or IndexSettings(find_links=(self.links.as_uri(),), no_index=True)
        uv = Uv(self.root / "uv", self.root, indexes, offline=offline)
        self.count += 1
        workspace = self.root / f"work-{self.count}"
        workspace.mkdir()

        async def run() -> list[Path]:
            return [
                wheel.finish() for wheel in await unpack_wheels(uv, wheels, workspace=workspace)
            ]

        return anyio.run(run)

    def one(self, path: Path, *, scheme: InstallScheme = SCHEME) -> Path:
        return self.unpack([self.wheel(path, scheme=scheme)])[0]


@pytest.fixture
def unpacker(tmp_path: Path) -> WheelUnpacker:
    return WheelUnpacker(tmp_path)


def listing(tree: Path) -> dict[str, str]:
    """Every file with its digest."""
    return {
        str(path.relative_to(tree)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(tree.rglob("*"))
        if path.is_file()
    }


def diff_id(tree: Path) -> str:
    return write_layer(
        tree, None, normalise=NormalizeOptions(mtime=WHEEL_TIME, uid=0, gid=0)
    ).diff_id


def record_of(tree: Path, info: str) -> dict[str, tuple[str, str]]:
    with (tree / SITE / info / "RECORD").open(newline="") as file:
        return {row[0]: (row[1], row[2]) for row in csv.reader(file)}


def test_a_wheel_is_its_files_and_our_notes(unpacker: WheelUnpacker) -> None:
    tree = unpacker.one(make_wheel(unpacker.links, "plain", files={"plain/__init__.py": "x = 1\n"}))
    assert set(listing(tree)) == {
        f"{SITE}/plain/__init__.py",
        f"{SITE}/plain-1.0.dist-info/METADATA",
        f"{SITE}/plain-1.0.dist-info/WHEEL",
        f"{SITE}/plain-1.0.dist-info/INSTALLER",
        f"{SITE}/plain-1.0.dist-info/RECORD",
    }
    assert (tree / SITE / "plain-1.0.dist-info/INSTALLER").read_text() == "danlu\n"


def test_record_lists_exactly_the_installed_files(unpacker: WheelUnpacker) -> None:
    wheel = make_wheel(
        unpacker.links,
        "listed",
        files={'odd/a, "b".py': "", "odd/c d.py": "x", "odd/ü.py": "y"},
        data={"data/share/listed/a.txt": "a", "scripts/go": "#!python\nprint(1)\n"},
        entry_points="[console_scripts]\nlisted = odd:main\n",
    )
    tree = unpacker.one(wheel)
    rows = record_of(tree, "listed-1.0.dist-info")
    files = {os.path.relpath(tree / name, tree / SITE) for name in listing(tree)}
    assert set(rows) == files
    for name, (digest, size) in rows.items():
        if not name.endswith("/RECORD"):
            data = (tree / SITE / name).read_bytes()
            assert digest.startswith("sha256=")
            assert int(size) == len(data), name


def test_scripts_name_the_images_interpreter(unpacker: WheelUnpacker) -> None:
    wheel = make_wheel(
        unpacker.links,
        "scripts",
        files={"s.py": "class A:\n    def b(): return 0\n"},
        data={
            "scripts/ours": "#!python\nprint(1)\n",
            "scripts/shell": "#!/bin/sh\necho 1\n",
            "scripts/env": "#!/usr/bin/env python3\nprint(1)\n",
        },
        entry_points="[console_scripts]\nrun-it = s:A.b [extra]\n[gui_scripts]\nwin = s:A\n",
    )
    directory = unpacker.one(wheel) / "opt/venv/bin"
    assert (directory / "ours").read_text() == "#!/opt/venv/bin/python\nprint(1)\n"
    assert (directory / "shell").read_text() == "#!/bin/sh\necho 1\n"
    assert (directory / "env").read_text() == "#!/usr/bin/env python3\nprint(1)\n"
    launcher = (directory / "run-it").read_text()
    assert launcher.startswith("#!/opt/venv/bin/python\n")
    assert "from s import A\n" in launcher
    assert "A.b()" in launcher
    for script in directory.iterdir():
        assert stat.S_IMODE(script.stat().st_mode) == 0o755


def test_a_long_interpreter_path_is_run_through_sh(unpacker: WheelUnpacker) -> None:
    prefix = "/opt/" + "x" * 120
    scheme = InstallScheme(prefix, "3.11", "lib/python3.11/site-packages", f"{prefix}/bin/python")
    wheel = make_wheel(
        unpacker.links,
        "long",
        files={"m.py": "def f(): pass\n"},
        data={"scripts/s": "#!python\npass\n"},
        entry_points="[console_scripts]\nlong = m:f\n",
    )
    directory = unpacker.one(wheel, scheme=scheme) / prefix[1:] / "bin"
    for name in ("long", "s"):
        first, second, third = (directory / name).read_text().splitlines()[:3]
        assert first == "#!/bin/sh"
        assert f'"{prefix}/bin/python" "$0" "$@"' in second
        assert third == "' '''"


def test_data_headers_and_libraries_go_to_the_directories_of_the_image(
    unpacker: WheelUnpacker,
) -> None:
    wheel = make_wheel(
        unpacker.links,
        "placed",
        data={
            "data/share/man/man1/p.1": "m",
            "data/etc/p.conf": "c",
            "headers/p.h": "h",
            "purelib/pure.py": "",
            "platlib/plat.py": "",
        },
    )
    names = set(listing(unpacker.one(wheel)))
    assert {
        "opt/venv/share/man/man1/p.1",
        "opt/venv/etc/p.conf",
        "opt/venv/include/site/python3.11/placed/p.h",
        f"{SITE}/pure.py",
        f"{SITE}/plat.py",
    } <= names


def test_another_python_than_the_hosts_gets_its_own_directories(unpacker: WheelUnpacker) -> None:
    scheme = InstallScheme(
        "/opt/venv", "3.13", "lib/python3.13/site-packages", "/opt/venv/bin/python"
    )
    wheel = make_wheel(unpacker.links, "other", files={"o.py": ""}, data={"headers/o.h": ""})
    names = set(listing(unpacker.one(wheel, scheme=scheme)))
    assert "opt/venv/lib/python3.13/site-packages/o.py" in names
    assert "opt/venv/include/site/python3.13/other/o.h" in names
    assert not any("3.11" in name for name in names)


def test_namespace_packages_are_split(unpacker: WheelUnpacker) -> None:
    first = make_wheel(unpacker.links, "ns-one", files={"ns/one/a.py": "1", "ns/one/b.py": ""})
    second = make_wheel(unpacker.links, "ns-two", files={"ns/two/a.py": "2", "ns/c.py": ""})
    one, two = unpacker.unpack([unpacker.wheel(first), unpacker.wheel(second)])
    assert {name for name in listing(one) if "/ns/" in name} == {
        f"{SITE}/ns/one/a.py",
        f"{SITE}/ns/one/b.py",
    }
    assert {name for name in listing(two) if "/ns/" in name} == {
        f"{SITE}/ns/two/a.py",
        f"{SITE}/ns/c.py",
    }


def test_a_layer_does_not_depend_on_other_wheels(unpacker: WheelUnpacker) -> None:
    wheels = [
        unpacker.wheel(
            make_wheel(
                unpacker.links,
                f"friend-{number}",
                files={f"shared/f{number}.py": "", "shared/__init__.py": "same", "tests/t.py": ""},
                entry_points=f"[console_scripts]\nf{number} = shared:x\n",
            )
        )
        for number in range(3)
    ]
    together = [diff_id(tree) for tree in unpacker.unpack(wheels)]
    alone = [diff_id(unpacker.unpack([wheel])[0]) for wheel in wheels]
    backwards = [diff_id(tree) for tree in unpacker.unpack(wheels[::-1])][::-1]
    assert together == alone == backwards


def test_unrecorded_files_are_kept_in_the_wheels_layer(unpacker: WheelUnpacker) -> None:
    first = make_wheel(
        unpacker.links, "sloppy", files={"p/a.py": "", "p/extra.txt": "e"}, unlisted=["p/extra.txt"]
    )
    second = make_wheel(unpacker.links, "tidy", files={"p/b.py": "", "q/c.py": ""})
    wheels = [unpacker.wheel(first), unpacker.wheel(second)]
    sloppy, tidy = unpacker.unpack(wheels)
    assert f"{SITE}/p/extra.txt" in listing(sloppy)
    assert f"{SITE}/p/extra.txt" not in listing(tidy)
    assert "p/extra.txt" not in record_of(tidy, "tidy-1.0.dist-info")
    assert "p/extra.txt" in record_of(sloppy, "sloppy-1.0.dist-info")
    assert [diff_id(unpacker.unpack([wheel])[0]) for wheel in wheels] == [
        diff_id(sloppy),
        diff_id(tidy),
    ]


def test_rows_of_missing_files_are_dropped(unpacker: WheelUnpacker) -> None:
    wheel = make_wheel(
        unpacker.links, "ghost", files={"g.py": ""}, more_rows=[("gone.py", "sha256=abc", "3")]
    )
    assert "gone.py" not in record_of(unpacker.one(wheel), "ghost-1.0.dist-info")


def test_one_path_with_different_bytes_is_an_error_naming_both(unpacker: WheelUnpacker) -> None:
    wheels = [
        unpacker.wheel(make_wheel(unpacker.links, name, files={"common/__init__.py": name}))
        for name in ("left", "right")
    ]
    with pytest.raises(ResolveError, match=r"left and right both contain .*common/__init__\.py"):
        unpacker.unpack(wheels)


def test_each_wheel_keeps_its_own_readme_next_to_the_packages(unpacker: WheelUnpacker) -> None:
    wheels = [
        unpacker.wheel(
            make_wheel(unpacker.links, name, files={"README.md": name, f"{name}.py": ""})
        )
        for name in ("left", "middle", "right")
    ]
    trees = unpacker.unpack(wheels)
    texts = [(tree / SITE / "README.md").read_text() for tree in trees]
    assert texts == ["left", "middle", "right"]


def test_one_path_with_the_same_bytes_is_in_both(unpacker: WheelUnpacker) -> None:
    wheels = [
        unpacker.wheel(make_wheel(unpacker.links, name, files={"common/__init__.py": "same"}))
        for name in ("left", "right")
    ]
    for tree in unpacker.unpack(wheels):
        assert (tree / SITE / "common/__init__.py").read_text() == "same"


def test_two_wheels_with_one_script_are_an_error_naming_both(unpacker: WheelUnpacker) -> None:
    wheels = [
        unpacker.wheel(
            make_wheel(
                unpacker.links,
                name,
                files={f"{name}.py": "def f(): pass\n"},
                entry_points=f"[console_scripts]\ngo = {name}:f\n",
            )
        )
        for name in ("left", "right")
    ]
    with pytest.raises(ResolveError, match=r"left and right both contain .*bin/go"):
        unpacker.unpack(wheels)


@pytest.mark.parametrize(
    "path", ["../../../../../../etc/passwd", "/etc/passwd", "../../../../../outside.py"]
)
def test_a_record_that_points_outside_reaches_nothing(unpacker: WheelUnpacker, path: str) -> None:
    wheel = make_wheel(
        unpacker.links, "escape", files={"e.py": ""}, more_rows=[(path, "sha256=abc", "3")]
    )
    try:
        tree = unpacker.one(wheel)
    except DanluError:
        return
    assert path not in record_of(tree, "escape-1.0.dist-info")
    assert Path("/etc/passwd").exists()


def test_an_installed_record_that_points_outside_is_refused(tmp_path: Path) -> None:
    info = tmp_path / "lib/python3.11/site-packages/escape-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text("../../../../../etc/passwd,,\n")
    with pytest.raises(OutsideError, match="outside the environment"):
        list_distributions(tmp_path)


@pytest.mark.parametrize("path", ["../outside.py", "x/../../../outside.py", "/tmp/outside.py"])
def test_a_member_that_points_outside_reaches_nothing(unpacker: WheelUnpacker, path: str) -> None:
    wheel = make_wheel(unpacker.links, "escape", files={"e.py": "", path: "evil"})
    try:
        tree = unpacker.one(wheel)
    except DanluError:
        pass
    else:
        assert all(name.startswith(SITE) for name in listing(tree))
    inside = [path for path in unpacker.root.rglob("outside.py") if SITE not in str(path)]
    assert [path for path in inside if "uv/" not in str(path)] == []
    assert not Path("/tmp/outside.py").exists()


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "..", "a/b"])
def test_a_script_name_with_a_path_is_refused(unpacker: WheelUnpacker, name: str) -> None:
    wheel = make_wheel(
        unpacker.links,
        "evil",
        files={"e.py": ""},
        entry_points=f"[console_scripts]\n{name} = e:f\n",
    )
    with pytest.raises(DanluError):
        unpacker.one(wheel)
    assert not (unpacker.root / "evil").exists()
    assert not Path("/tmp/evil").exists()


def test_symbolic_links_in_an_archive_do_not_become_links(unpacker: WheelUnpacker) -> None:
    import zipfile

    path = make_wheel(unpacker.links, "linked", files={"l.py": ""})
    with zipfile.ZipFile(path, "a") as archive:
        entry = zipfile.ZipInfo("passwd")
        entry.external_attr = 0o120777 << 16
        archive.writestr(entry, "/etc/passwd")
    try:
        tree = unpacker.one(path)
    except DanluError:
        return
    assert not any(path.is_symlink() for path in tree.rglob("*"))


def test_byte_code_of_a_wheel_is_left_out(unpacker: WheelUnpacker) -> None:
    wheel = make_wheel(
        unpacker.links,
        "compiled",
        files={"c.py": "", "__pycache__/c.cpython-311.pyc": b"\0", "p/__pycache__/x.pyc": b""},
    )
    assert not any("__pycache__" in name for name in listing(unpacker.one(wheel)))


def test_modes_and_times_are_fixed_and_the_cache_keeps_its_own(unpacker: WheelUnpacker) -> None:
    wheel = make_wheel(
        unpacker.links,
        "modes",
        files={"m.py": "", "bin.sh": "#!/bin/sh\n", "secret": "s", "su": "s"},
        executable=["bin.sh"],
        modes={"secret": 0o600, "su": 0o6755},
    )
    before = os.umask(0o077)
    try:
        tree = unpacker.one(wheel)
    finally:
        os.umask(before)
    for path in tree.rglob("*"):
        status = path.lstat()
        assert int(status.st_mtime) == WHEEL_TIME, path
        expected = 0o755 if path.is_dir() or path.name in ("bin.sh", "su") else 0o644
        assert stat.S_IMODE(status.st_mode) == expected, path


def test_the_second_time_needs_no_index(unpacker: WheelUnpacker) -> None:
    path = make_wheel(unpacker.links, "kept", files={"k.py": "1"})
    wheel = unpacker.wheel(path)
    first = diff_id(unpacker.unpack([wheel])[0])
    assert diff_id(unpacker.unpack([wheel], offline=True)[0]) == first


def test_a_file_the_index_no_longer_has_is_named(unpacker: WheelUnpacker) -> None:
    path = make_wheel(unpacker.links, "moved", version="1.0", files={"k.py": "1"})
    wheel = unpacker.wheel(path)
    path.unlink()
    make_wheel(unpacker.links, "moved", version="2.0", files={"k.py": "1"})
    with pytest.raises(OutsideError, match=r"moved-1\.0-py3-none-any\.whl") as caught:
        unpacker.unpack([wheel])
    assert "moved 2.0" in caught.value.hint
    assert "--upgrade moved" in caught.value.hint


def test_a_file_with_other_bytes_is_a_checksum_error(unpacker: WheelUnpacker) -> None:
    path = make_wheel(unpacker.links, "changed", files={"k.py": "1"})
    with pytest.raises(ChecksumError) as caught:
        unpacker.unpack([unpacker.wheel(path, sha256="0" * 64)])
    assert "restore danlu.lock" in caught.value.hint


def test_a_locked_file_is_found_on_any_index_that_has_it(unpacker: WheelUnpacker) -> None:
    wheels, expected = [], []
    for name in ("one", "two"):
        path = make_wheel(unpacker.links, name, files={f"{name}.py": "main"})
        wheels.append(unpacker.wheel(path))
        expected.append(diff_id(unpacker.unpack(wheels[-1:])[0]))
    for index, text in (("extra", "another build"), ("main", "main")):
        for name in ("one", "two"):
            page = unpacker.root / index / name
            path = make_wheel(page, name, files={f"{name}.py": text})
            link = f'<a href="{path.name}#sha256={sha256_of(path)}">{path.name}</a>'
            (page / "index.html").write_text(f"<!DOCTYPE html><html><body>{link}</body></html>")
    indexes = IndexSettings(
        default=(unpacker.root / "main").as_uri(), extra=((unpacker.root / "extra").as_uri(),)
    )
    (unpacker.root / "uv").rename(unpacker.root / "uv-before")
    trees = unpacker.unpack(wheels, indexes=indexes)
    assert [diff_id(tree) for tree in trees] == expected


def test_an_invalid_entry_point_is_reported(unpacker: WheelUnpacker) -> None:
    wheel = make_wheel(
        unpacker.links, "bad", files={"b.py": ""}, entry_points="[console_scripts]\nbad = nothing\n"
    )
    with pytest.raises(DanluError, match="bad"):
        unpacker.one(wheel)


def test_a_directory_among_the_scripts_is_reported_with_its_place_in_the_wheel(
    unpacker: WheelUnpacker,
) -> None:
    wheel = make_wheel(unpacker.links, "bad", data={"scripts/tools/run": ""})
    with pytest.raises(DanluError) as caught:
        unpacker.one(wheel)
    assert "wheel of bad is invalid" in caught.value.message
    assert "directory: bad-1.0.data/scripts/tools" in caught.value.message
    assert str(unpacker.root) not in "".join((caught.value.message, *caught.value.details))


def test_unnormalised_names_are_found(unpacker: WheelUnpacker) -> None:
    path = make_wheel(unpacker.links, "Weird.Name", files={"w.py": ""}, metadata_name="Weird.Name")
    wheel = unpacker.wheel(path)
    tree = unpacker.unpack(
        [Wheel("weird-name", "1.0", path.name, wheel.sha256, wheel.source, SCHEME)]
    )
    assert f"{SITE}/w.py" in listing(tree[0])


def test_a_local_version_and_a_build_number_are_understood(unpacker: WheelUnpacker) -> None:
    path = make_wheel(unpacker.links, "localv", version="1.0+cpu.1", files={"v.py": ""})
    assert f"{SITE}/v.py" in listing(unpacker.one(path))


def test_the_host_is_nowhere_in_a_layer(unpacker: WheelUnpacker) -> None:
    import sys

    wheel = make_wheel(
        unpacker.links,
        "anonymous",
        files={"a.py": ""},
        data={"scripts/s": "#!python\n"},
        entry_points="[console_scripts]\nanonymous = a:f\n",
    )
    tree = unpacker.one(wheel)
    for path in tree.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert str(unpacker.root).encode() not in data
            assert sys.executable.encode() not in data


def prefix_with(root: Path, **wheels: dict[str, bool]) -> Path:
    """A prefix as an installer leaves it; files that are false are in no RECORD."""
    site = root / "lib/python3.11/site-packages"
    for name, files in wheels.items():
        info = site / f"{name}-1.dist-info"
        info.mkdir(parents=True)
        for path in files:
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(name)
        names = [path for path, existing in files.items() if existing]
        (info / "RECORD").write_text(
            "".join(f"{path},,\n" for path in [*names, f"{info.name}/RECORD"])
        )
    return root


def trees_for(root: Path, *names: str) -> dict[str, Path]:
    trees = {name: root / "trees" / name for name in names}
    for tree in trees.values():
        tree.mkdir(parents=True)
    return trees


def test_unlisted_files_in_a_shared_directory_are_installed_separately(tmp_path: Path) -> None:
    prefix = prefix_with(tmp_path / "p", a={"s/a.py": True, "s/extra": False}, b={"s/b.py": True})
    trees = trees_for(tmp_path, "a", "b")
    with pytest.raises(UnlistedFilesError) as caught:
        split_prefix(prefix, list_distributions(prefix), SCHEME, trees)
    assert caught.value.names == {"a", "b"}


def test_unlisted_files_among_a_wheels_own_belong_to_it(tmp_path: Path) -> None:
    prefix = prefix_with(tmp_path / "p", a={"s/a.py": True, "s/extra": False}, b={"t/b.py": True})
    trees = trees_for(tmp_path, "a", "b")
    distributions = list_distributions(prefix)
    split_prefix(prefix, distributions, SCHEME, trees)
    finish_tree(trees["a"], distributions[0], SCHEME, [])
    assert "s/extra" in record_of(trees["a"], "a-1.dist-info")


def test_a_wheel_installed_alone_owns_every_file(tmp_path: Path) -> None:
    prefix = prefix_with(tmp_path / "p", a={"s/a.py": True, "top.txt": False})
    (prefix / ".lock").touch()
    trees = trees_for(tmp_path, "a")
    distributions = list_distributions(prefix)
    take_all(prefix, distributions[0], SCHEME, trees["a"])
    finish_tree(trees["a"], distributions[0], SCHEME, [])
    assert "top.txt" in record_of(trees["a"], "a-1.dist-info")
    assert not (trees["a"] / "opt/venv/.lock").exists()


def test_a_link_in_a_prefix_is_refused(tmp_path: Path) -> None:
    prefix = prefix_with(tmp_path / "p", a={"s/a.py": True})
    (prefix / "lib/python3.11/site-packages/s/link").symlink_to("/etc/passwd")
    trees = trees_for(tmp_path, "a")
    distributions = list_distributions(prefix)
    split_prefix(prefix, distributions, SCHEME, trees)
    with pytest.raises(OutsideError, match="link"):
        finish_tree(trees["a"], distributions[0], SCHEME, [])


@pytest.mark.parametrize("kind", ["local", "url", "built", "index"])
@pytest.mark.parametrize("broken", ["garbage", "cut"])
def test_a_wheel_that_cannot_be_read_is_not_blamed_on_an_index(
    unpacker: WheelUnpacker, kind: Any, broken: str
) -> None:
    path = make_wheel(unpacker.links, "broken", files={"b.py": "x = 1\n" * 2000})
    path.write_bytes(b"hello" if broken == "garbage" else path.read_bytes()[:3000])
    wheel = replace(unpacker.wheel(path), source=WheelSource(kind, path.name))
    indexes = IndexSettings(find_links=(unpacker.links.as_uri(),), no_index=True)
    uv = Uv(unpacker.root / "uv", unpacker.root, indexes)
    files = {} if kind == "index" else {wheel.sha256: path}

    async def run() -> None:
        await unpack_wheels(uv, [wheel], workspace=unpacker.root, files=files)

    with pytest.raises(InvalidWheel, match=r"broken-1\.0-py3-none-any\.whl") as caught:
        anyio.run(run)
    assert "no longer have" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "setting",
    [
        'constraint-dependencies = ["plain<2"]',
        'exclude-dependencies = ["plain"]',
        'override-dependencies = ["plain<1"]',
        'exclude-newer = "2001-01-01"',
    ],
)
def test_what_is_locked_is_installed_whatever_uvs_settings_choose(
    unpacker: WheelUnpacker, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.delenv("UV_NO_CONFIG")
    (unpacker.root / "pyproject.toml").write_text(f"[tool.uv]\n{setting}\n")
    tree = unpacker.one(make_wheel(unpacker.links, "plain", files={"plain/__init__.py": ""}))
    assert (tree / SITE / "plain/__init__.py").is_file()


def test_what_is_locked_comes_from_the_index_of_uvs_settings(
    unpacker: WheelUnpacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_NO_CONFIG")
    wheel = unpacker.wheel(make_wheel(unpacker.links, "plain", files={"plain/__init__.py": ""}))
    (unpacker.root / "pyproject.toml").write_text(
        f'[tool.uv]\nno-index = true\nfind-links = ["{unpacker.links.as_uri()}"]\n'
        'constraint-dependencies = ["plain<2"]\n'
    )

    async def run() -> Path:
        uv = Uv(unpacker.root / "uv", unpacker.root, IndexSettings())
        return (await unpack_wheels(uv, [wheel], workspace=unpacker.root))[0].finish()

    assert (anyio.run(run) / SITE / "plain/__init__.py").is_file()


@pytest.mark.parametrize(
    "variable", ["UV_CONSTRAINT", "UV_EXCLUDE", "UV_OVERRIDE", "PIP_CONSTRAINT"]
)
def test_what_is_locked_is_installed_whatever_constraints_are_configured(
    unpacker: WheelUnpacker, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    listing_file = unpacker.root / "listing.txt"
    listing_file.write_text("plain\n" if variable == "UV_EXCLUDE" else "plain<2\nother<3\n")
    monkeypatch.setenv(variable, str(listing_file))
    tree = unpacker.one(make_wheel(unpacker.links, "plain", files={"plain/__init__.py": ""}))
    assert (tree / SITE / "plain/__init__.py").is_file()
