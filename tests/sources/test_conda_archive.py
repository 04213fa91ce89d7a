"""Archives of conda packages as they are found in channels, and as an attacker would write them."""

from __future__ import annotations

import bz2
import io
import json
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import zstandard

from danlu.errors import OutsideError
from danlu.graph.ops import CondaPackage
from danlu.sources.conda.unpack import unpack_package

PLACEHOLDER = b"/opt/anaconda1anaconda2anaconda3"
INDEX = json.dumps({"name": "app", "version": "1", "build": "0"}).encode()

#: A tar's entry: its name, and its content or what to do with its header.
Entry = tuple[str, bytes | Callable[[tarfile.TarInfo], None]]


def make_tar(entries: Sequence[Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in entries:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                content(member)
                archive.addfile(member)
    return buffer.getvalue()


def link_to(target: str, kind: bytes = tarfile.LNKTYPE) -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        member.type, member.linkname = kind, target

    return change


def set_kind(kind: bytes) -> Callable[[tarfile.TarInfo], None]:
    return link_to("", kind)


def list_entry(path: str, **more: str) -> dict[str, str]:
    return {"_path": path, "path_type": "hardlink", **more}


def make_info(*paths: dict[str, str]) -> list[Entry]:
    listing = json.dumps({"paths": paths, "paths_version": 1}).encode()
    return [("info/index.json", INDEX), ("info/paths.json", listing)]


def write_conda(path: Path, info: Sequence[Entry], files: Sequence[Entry]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for part, entries in (("info", info), ("pkg", files)):
            archive.writestr(f"{part}-app-1-0.tar.zst", zstandard.compress(make_tar(entries)))
    return path


def unpack(archive: Path) -> Path:
    """Return the prefix, which must be the only thing in the layer."""
    tree = archive.parent / "tree"
    tree.mkdir()
    op = CondaPackage("app", "1", "0", "team", "linux-64", archive.name, "0" * 64, "/opt/conda")
    unpack_package(archive, op, tree)
    return tree / "opt/conda"


def list_files(prefix: Path) -> list[str]:
    return sorted(
        str(path.relative_to(prefix))
        for path in prefix.rglob("*")
        if path.relative_to(prefix).parts[0] != "conda-meta"
    )


@pytest.mark.parametrize("info_first", [True, False])
def test_a_package_of_before_paths_json_lists_files_and_prefixes(
    tmp_path: Path, info_first: bool
) -> None:
    files: list[Entry] = [
        ("bin/tool", b"#!" + PLACEHOLDER + b"/bin/sh\n"),
        ("lib/with space", b"\0/long/placeholder/of/it/lib\0"),
        ("lib/plain", PLACEHOLDER),
    ]
    info: list[Entry] = [
        ("info/index.json", INDEX),
        ("info/files", b"bin/tool\nlib/with space\nlib/plain\n"),
        ("info/has_prefix", b'bin/tool\n/long/placeholder/of/it binary "lib/with space"\n'),
    ]
    archive = tmp_path / "app-1-0.tar.bz2"
    archive.write_bytes(bz2.compress(make_tar([*info, *files] if info_first else [*files, *info])))
    prefix = unpack(archive)
    assert list_files(prefix) == ["bin", "bin/tool", "lib", "lib/plain", "lib/with space"]
    assert (prefix / "bin/tool").read_text() == "#!/opt/conda/bin/sh\n"
    content = (prefix / "lib/with space").read_bytes()
    assert content == b"\0/opt/conda/lib".ljust(len(files[1][1]) - 1, b"\0") + b"\0"  # type: ignore[arg-type]
    assert (prefix / "lib/plain").read_bytes() == PLACEHOLDER


def test_hard_links_are_kept_and_their_prefix_is_replaced(tmp_path: Path) -> None:
    name = PLACEHOLDER.decode()
    listing = [
        list_entry(path, prefix_placeholder=name, file_mode="text") for path in ("bin/a", "bin/b")
    ]
    files: list[Entry] = [("bin/a", PLACEHOLDER), ("bin/b", link_to("bin/a"))]
    prefix = unpack(write_conda(tmp_path / "app-1-0.conda", make_info(*listing), files))
    assert (prefix / "bin/a").read_bytes() == b"/opt/conda"
    assert (prefix / "bin/a").samefile(prefix / "bin/b")
    assert (prefix / "bin/b").stat().st_mtime == 315532800


def test_only_listed_files_are_written(tmp_path: Path) -> None:
    files: list[Entry] = [
        ("./share/", set_kind(tarfile.DIRTYPE)),
        ("./share/app", b"1"),
        ("./share/empty/", set_kind(tarfile.DIRTYPE)),
        ("unlisted/file", b"2"),
        ("../../outside", b"3"),
        ("fifo", set_kind(tarfile.FIFOTYPE)),
    ]
    info = make_info(list_entry("share/app"), list_entry("share/empty", path_type="directory"))
    prefix = unpack(write_conda(tmp_path / "app-1-0.conda", info, files))
    assert list_files(prefix) == ["share", "share/app", "share/empty"]
    assert not (tmp_path / "outside").exists()


def test_the_later_of_two_entries_counts(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    files: list[Entry] = [("app", link_to(str(outside), tarfile.SYMTYPE)), ("app", b"2")]
    prefix = unpack(write_conda(tmp_path / "app-1-0.conda", make_info(list_entry("app")), files))
    assert (prefix / "app").read_bytes() == b"2"
    assert outside.read_text() == "mine"


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    def allow_all(member: tarfile.TarInfo) -> None:
        member.mode = 0o4777

    files: list[Entry] = [("bin/app", allow_all), ("share", b"")]
    info = make_info(list_entry("bin/app"), list_entry("share"))
    before = os.umask(0o077)
    try:
        prefix = unpack(write_conda(tmp_path / "app-1-0.conda", info, files))
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((prefix / name).stat().st_mode) for name in ("bin", "bin/app", "share")]
    assert modes == [0o755, 0o755, 0o644]


HOSTILE: dict[str, tuple[list[Entry], list[dict[str, str]], str]] = {
    "a hard link to a file of this machine": (
        [("app", link_to("/etc/hostname"))],
        [list_entry("app")],
        "app linked to a file that it does not list",
    ),
    "a hard link through a link": (
        [("etc", link_to("/etc", tarfile.SYMTYPE)), ("app", link_to("etc/hostname"))],
        [list_entry("etc"), list_entry("app")],
        "app linked to a file that it does not list",
    ),
    "a file below a link": (
        [("lib", link_to("/tmp", tarfile.SYMTYPE)), ("lib/evil", b"")],
        [list_entry("lib"), list_entry("lib/evil")],
        "files below lib, which is not a directory",
    ),
    "a link instead of a directory": (
        [("lib/evil", b""), ("lib", link_to("/tmp", tarfile.SYMTYPE))],
        [list_entry("lib"), list_entry("lib/evil")],
        "two files at lib",
    ),
    "a device": (
        [("null", set_kind(tarfile.CHRTYPE))],
        [list_entry("null")],
        "null is a special file",
    ),
    "a link to nothing": (
        [("app", link_to("", tarfile.SYMTYPE))],
        [list_entry("app")],
        "app is a link without a target",
    ),
    "a name that is too long": (
        [("a" * 300, b"")],
        [list_entry("a" * 300)],
        "the path aaaa",
    ),
    "a path that is too deep": ([], [list_entry("a/" * 500 + "b")], "the path a/a/a"),
    "a binary with a short placeholder": (
        [("app", b"/b")],
        [list_entry("app", prefix_placeholder="/b", file_mode="binary")],
        "a placeholder shorter than /opt/conda",
    ),
    "an unprintable name": ([], [list_entry("a\x1b[2J")], r"no file at a\\x1b"),
    "its own record": (
        [("conda-meta/app-1-0.json", b"")],
        [list_entry("conda-meta/app-1-0.json")],
        "two files at conda-meta/app-1-0.json",
    ),
}


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_a_hostile_archive_is_refused(tmp_path: Path, case: str) -> None:
    files, listing, message = HOSTILE[case]
    archive = write_conda(tmp_path / "app-1-0.conda", make_info(*listing), files)
    with pytest.raises(OutsideError, match=f"app-1-0.conda is damaged: it has {message}"):
        unpack(archive)


def cut_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for part in ("info", "pkg"):
            data = zstandard.compress(make_tar(make_info(list_entry("app"))))
            archive.writestr(f"{part}-app-1-0.tar.zst", data[: len(data) // 2])


def write_two_parts(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("info-a.tar.zst", "info-b.tar.zst"):
            archive.writestr(name, b"")


def encrypt_zip(path: Path) -> None:
    write_conda(path, make_info(), [])
    # The first flag of each entry of the directory (APPNOTE 4.4.4).
    path.write_bytes(path.read_bytes().replace(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1"))


def flip_content(path: Path) -> None:
    write_conda(path, make_info(list_entry("app")), [("app", bytes(range(256)))])
    data = bytearray(path.read_bytes())
    data[data.index(bytes(range(100, 200)))] ^= 1
    path.write_bytes(data)


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (cut_zip, "truncated|no info"),
    "without files": (write_two_parts, "it has 2 members info-"),
    "encrypted": (encrypt_zip, "encrypted"),
    "changed": (flip_content, "CRC|checksum"),
    "no list": (lambda path: write_conda(path, [("info/index.json", INDEX)], []), "no info/paths"),
    "bad list": (
        lambda path: write_conda(path, [("info/paths.json", b'{"paths": [{"_path": 1}]}')], []),
        "invalid info/paths.json",
    ),
    "bad prefixes": (
        lambda path: write_conda(
            path, [("info/files", b"a\n"), ("info/has_prefix", b"/p other a\n")], []
        ),
        "invalid info/files or info/has_prefix",
    ),
    "bad quotes": (
        lambda path: write_conda(path, [("info/files", b"a\n"), ("info/has_prefix", b'"a\n')], []),
        "invalid info/files or info/has_prefix",
    ),
}


@pytest.mark.parametrize("case", sorted(DAMAGED))
def test_a_damaged_archive_is_refused(tmp_path: Path, case: str) -> None:
    write, message = DAMAGED[case]
    archive = tmp_path / "app-1-0.conda"
    write(archive)
    with pytest.raises(OutsideError, match=f"app-1-0.conda is not a conda package: .*({message})"):
        unpack(archive)


@pytest.mark.parametrize("data", [b"", b"BZh9not", bz2.compress(b"x" * 1000)[:-8]])
def test_a_damaged_older_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    archive = tmp_path / "app-1-0.tar.bz2"
    archive.write_bytes(data)
    with pytest.raises(OutsideError, match=r"app-1-0\.tar\.bz2 is not a conda package"):
        unpack(archive)


def test_a_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("danlu.sources.conda.archive._SIZE_FLOOR", 1 << 20)
    files: list[Entry] = [("app", bytes(50 << 20))]
    archive = write_conda(tmp_path / "app-1-0.conda", make_info(list_entry("app")), files)
    with pytest.raises(OutsideError, match="exceeds the limit"):
        unpack(archive)
