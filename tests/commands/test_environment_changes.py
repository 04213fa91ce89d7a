"""Manual changes in an environment, converted to lines of the build file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from danlu.commands.build_file_text import append_lines
from danlu.commands.environments.changes import (
    ChangedFile,
    EnvironmentChanges,
    collect_changes,
    render_build_lines,
)
from danlu.commands.environments.commit import copy_files
from danlu.commands.environments.conda_changes import CondaChange
from danlu.errors import UsageError
from danlu.oci.overlay import make_whiteout

SITE = "opt/venv/lib/python3.11/site-packages"


def write_file(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def remove_entry(path: Path) -> None:
    """Write what overlayfs does if an entry of the image is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    make_whiteout(os.fsencode(path.name), directory=directory)
    os.close(directory)


def add_distribution(tree: Path, name: str, version: str, *, requested: bool) -> None:
    info = tree / SITE / f"{name}-{version}.dist-info"
    write_file(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nx")
    write_file(info / "RECORD", f'{name}/__init__.py,,\n../../../bin/{name},,\n"{name}/a,b",,\n')
    for path in (f"{SITE}/{name}/__init__.py", f"opt/venv/bin/{name}", f"{SITE}/{name}/a,b"):
        write_file(tree / path)
    if requested:
        write_file(info / "REQUESTED")


def status_of(*names: str) -> str:
    return "\n\n".join(f"Package: {name}\nStatus: install ok installed" for name in names) + "\n"


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """The writable layer, and the image's only layer."""
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    upper.mkdir()
    write_file(lower / "var/lib/dpkg/status", status_of("base-files"))
    write_file(lower / "etc/profile", "before")
    return upper, lower


def test_requested_python_packages_become_a_call(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    add_distribution(upper, "Rich", "15.0.0", requested=True)
    add_distribution(upper, "mdurl", "0.1.2", requested=False)
    changes = collect_changes(upper, [lower])
    assert [(item.name, item.requested) for item in changes.python] == [
        ("rich", True),
        ("mdurl", False),
    ]
    assert changes.files == ()
    assert render_build_lines(changes) == ['install.python_packages(["rich==15.0.0"])']


def test_an_upgraded_python_package_leaves_no_removed_files(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    info = lower / SITE / "rich-14.0.0.dist-info"
    write_file(info / "METADATA", "Name: rich\nVersion: 14.0.0\n\n")
    files = ("rich/old.py", "rich/old/a.py", "rich/own/b.py")
    names = (*files, "../../../bin/rich-old", "rich-14.0.0.dist-info/METADATA")
    write_file(info / "RECORD", "".join(f"{name},,\n" for name in names))
    for path in ("rich/own/mine.py", "other.py", *files):
        write_file(lower / SITE / path)
    write_file(lower / "opt/venv/bin/rich-old")
    add_distribution(upper, "rich", "15.0.0", requested=True)
    removed = ("rich/old.py", "rich/old", "rich/own", "other.py", info.name)
    for path in (*(f"{SITE}/{name}" for name in removed), "opt/venv/bin/rich-old"):
        remove_entry(upper / path)
    changes = collect_changes(upper, [lower])
    assert [change.path for change in changes.files] == [f"/{SITE}/other.py", f"/{SITE}/rich/own"]


def test_files_of_a_removed_python_package_are_removed(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    add_distribution(lower, "rich", "14.0.0", requested=True)
    remove_entry(upper / SITE / "rich-14.0.0.dist-info")
    add_distribution(upper, "richer", "1", requested=True)
    (change,) = collect_changes(upper, [lower]).files
    assert (change.kind, change.path) == ("removed", f"/{SITE}/rich-14.0.0.dist-info")


def write_direct_url(tree: Path, name: str, content: object) -> None:
    write_file(tree / SITE / f"{name}-1.dist-info/direct_url.json", json.dumps(content))


def test_a_package_of_a_repository_is_installed_from_its_commit(
    trees: tuple[Path, Path],
) -> None:
    upper, lower = trees
    add_distribution(upper, "tool", "1", requested=True)
    vcs = {"vcs": "git", "commit_id": "a" * 40, "requested_revision": "main"}
    content = {"url": "https://example.com/tool.git", "vcs_info": vcs, "subdirectory": "py"}
    write_direct_url(upper, "tool", content)
    requirement = f"tool @ git+https://example.com/tool.git@{'a' * 40}#subdirectory=py"
    assert render_build_lines(collect_changes(upper, [lower])) == [
        f'install.python_packages(["{requirement}"])'
    ]


@pytest.mark.parametrize(
    "content",
    [
        {"url": "file:///workspace", "dir_info": {"editable": True}},
        {"url": "https://example.com/x-1.whl", "archive_info": {}},
        {"url": 'https://a/"]); x', "vcs_info": {"vcs": "git", "commit_id": "a" * 40}},
        {"url": "https://user:token@a/x", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}},
        {"url": "https://a/x", "vcs_info": {"vcs": "git", "commit_id": '"'}},
        [],
    ],
)
def test_a_package_that_no_index_has_is_not_taken_from_one(
    trees: tuple[Path, Path], content: object
) -> None:
    upper, lower = trees
    add_distribution(upper, "local", "1", requested=True)
    add_distribution(upper, "mdurl", "0.1.2", requested=False)
    write_direct_url(upper, "local", content)
    changes = collect_changes(upper, [lower])
    assert [item.name for item in changes.python if not item.requirement] == ["local"]
    # Nothing else installs its dependency.
    assert render_build_lines(changes) == ['install.python_packages(["mdurl==0.1.2"])']


@pytest.mark.parametrize("place", ["root/.cache/uv/archive-v0/x", "tmp/build"])
def test_unpacked_packages_are_not_installed(trees: tuple[Path, Path], place: str) -> None:
    upper, lower = trees
    write_file(upper / place / "rich-15.0.0.dist-info/METADATA", "Name: rich\nVersion: 15.0.0\n")
    assert collect_changes(upper, [lower]).is_empty


def test_names_that_begin_like_ignored_ones_are_changes(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    for path in ("workspaces/kept", "workspace/ignored", "opt/__pycache__.txt"):
        write_file(upper / path)
    changes = collect_changes(upper, [lower])
    assert [change.path for change in changes.files] == ["/opt/__pycache__.txt", "/workspaces/kept"]


def test_system_packages_become_a_call_without_their_dependencies(
    trees: tuple[Path, Path],
) -> None:
    upper, lower = trees
    write_file(upper / "var/lib/dpkg/status", status_of("base-files", "jq", "libjq1"))
    states = "Package: libjq1\nArchitecture: amd64\nAuto-Installed: 1\n"
    write_file(upper / "var/lib/apt/extended_states", states)
    write_file(upper / "var/lib/dpkg/info/jq.list", "/.\n/usr\n/usr/bin/jq\n")
    write_file(upper / "var/lib/dpkg/info/libjq1:amd64.list", "/usr/lib/libjq.so\n")
    for path in ("usr/bin/jq", "usr/lib/libjq.so"):
        write_file(upper / path)
    changes = collect_changes(upper, [lower])
    assert (changes.system, changes.dependencies, changes.files) == (("jq",), 1, ())
    assert render_build_lines(changes) == ['install.apt_packages(["jq"])']


def add_conda_package(tree: Path, name: str, version: str, **more: object) -> None:
    dist_info = f"lib/python3.11/site-packages/{name}-{version}.dist-info/METADATA"
    record = {"name": name, "version": version, "files": [f"share/{name}", dist_info], **more}
    write_file(tree / f"opt/conda/conda-meta/{name}-{version}-0.json", json.dumps(record))
    write_file(tree / f"opt/conda/share/{name}", version)
    write_file(tree / f"opt/conda/{dist_info}", f"Name: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("asked", [{"requested_spec": "numpy"}, {"requested_specs": ["numpy>=1"]}])
def test_requested_conda_packages_become_a_call(
    trees: tuple[Path, Path], asked: dict[str, object]
) -> None:
    upper, lower = trees
    add_conda_package(lower, "hello", "1.0")
    touched = "opt/conda/conda-meta/hello-1.0-0.json"
    write_file(upper / touched, (lower / touched).read_text())
    add_conda_package(upper, "numpy", "2.1.0", **asked)
    add_conda_package(upper, "openblas", "0.3", requested_spec="None")
    write_file(upper / "opt/conda/conda-meta/history", "==> now <==")
    write_file(upper / "opt/conda/pkgs/numpy-2.1.0-0.conda")
    changes = collect_changes(upper, [lower])
    assert changes.conda == (
        CondaChange("numpy", "2.1.0", requested=True),
        CondaChange("openblas", "0.3", requested=False),
    )
    assert render_build_lines(changes) == ['install.conda_packages(["numpy=2.1.0"])']


def test_an_upgraded_conda_package_leaves_no_removed_files(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    add_conda_package(lower, "numpy", "1.0")
    add_conda_package(upper, "numpy", "2.0")
    old = "opt/conda/lib/python3.11/site-packages/numpy-1.0.dist-info/METADATA"
    for path in ("opt/conda/conda-meta/numpy-1.0-0.json", old):
        remove_entry(upper / path)
    changes = collect_changes(upper, [lower])
    assert (changes.files, changes.python) == ((), ())
    assert render_build_lines(changes) == ['install.conda_packages(["numpy=2.0"])']


@pytest.mark.parametrize(
    ("name", "version"), [('x"]); run(["evil', "1"), ("x", '1"]); run(["evil'), ("../x", "1")]
)
def test_conda_records_from_inside_cannot_add_statements(
    trees: tuple[Path, Path], name: str, version: str
) -> None:
    upper, lower = trees
    record = json.dumps({"name": name, "version": version})
    write_file(upper / "opt/conda/conda-meta/x-1-0.json", record)
    write_file(upper / "opt/conda/conda-meta/y-1-0.json", "[" * 100_000)
    assert collect_changes(upper, [lower]).conda == ()


def test_a_conda_record_cannot_hide_other_files(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    add_conda_package(upper, "x", "1", files=["../../etc/profile", "/etc/profile"])
    write_file(upper / "etc/profile", "after")
    assert "/etc/profile" in [change.path for change in collect_changes(upper, [lower]).files]


def test_a_linked_conda_environment_is_not_read(trees: tuple[Path, Path], tmp_path: Path) -> None:
    upper, lower = trees
    add_conda_package(tmp_path / "host", "secret", "1")
    (upper / "opt").mkdir()
    (upper / "opt/conda").symlink_to(tmp_path / "host/opt/conda")
    assert collect_changes(upper, [lower]).conda == ()


def test_other_files_are_copied(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    write_file(upper / "etc/profile", "after!")
    write_file(upper / "opt/new")
    (upper / "opt/link").symlink_to("/etc/shadow")
    for ignored in ("tmp/x", "root/.cache/x", "var/log/x", "opt/__pycache__/x.pyc"):
        write_file(upper / ignored)
    changes = collect_changes(upper, [lower])
    assert changes.files == (
        ChangedFile("changed", "/etc/profile", 6),
        ChangedFile("added", "/opt/link", 11, is_regular=False),
        ChangedFile("added", "/opt/new"),
    )
    assert render_build_lines(changes, copied="kept") == [
        'io.copy("kept/etc/profile", "/etc/profile")',
        'io.copy("kept/opt/new", "/opt/new")',
    ]


def test_removed_files_are_removed_by_a_step() -> None:
    changes = EnvironmentChanges(files=(ChangedFile("removed", "/it's"),))
    assert render_build_lines(changes) == ["run([\"rm -rf -- '/it'\\\\''s'\"])"]


@pytest.mark.parametrize(
    ("name", "version"),
    [('x"]); run(["evil', "1"), ("x", '1"]); run(["evil'), ("../x", "1"), ("", "1"), ("x", "")],
)
def test_names_from_inside_cannot_add_statements(
    trees: tuple[Path, Path], name: str, version: str
) -> None:
    upper, lower = trees
    info = upper / SITE / "x-1.dist-info"
    write_file(info / "METADATA", f"Name: {name}\nVersion: {version}\n")
    assert collect_changes(upper, [lower]).python == ()


def test_links_in_the_layer_are_not_followed(trees: tuple[Path, Path], tmp_path: Path) -> None:
    upper, lower = trees
    write_file(tmp_path / "host/METADATA", "Name: secret\nVersion: 1\n")
    (upper / "a.dist-info").symlink_to(tmp_path / "host")
    info = upper / "b.dist-info"
    info.mkdir()
    (info / "METADATA").symlink_to(tmp_path / "host/METADATA")
    assert collect_changes(upper, [lower]).python == ()


def test_a_linked_package_database_is_not_read(trees: tuple[Path, Path], tmp_path: Path) -> None:
    upper, lower = trees
    write_file(tmp_path / "host/dpkg/status", status_of("secret"))
    (upper / "var").mkdir()
    (upper / "var/lib").symlink_to(tmp_path / "host")
    assert collect_changes(upper, [lower]).system == ()


def test_paths_become_string_literals() -> None:
    path = '/a"\\\n\x85\U000e0001'
    changes = EnvironmentChanges(files=(ChangedFile("removed", path),))
    (line,) = render_build_lines(changes)
    assert "\n" not in line
    assert line.isprintable()
    assert eval(line, {"run": lambda commands: commands}) == [f"rm -rf -- '{path}'"]


def test_a_name_that_is_not_utf8_has_no_line() -> None:
    changes = EnvironmentChanges(
        files=(ChangedFile("removed", "/a\udc80"), ChangedFile("added", "/b\udc80"))
    )
    assert render_build_lines(changes, copied="environment-files") == []


def test_lines_are_added_to_the_end_of_the_function(tmp_path: Path) -> None:
    file = tmp_path / "build.envd"
    file.write_text('def build():\n    base(os="debian12")\n\n\ndef serve():\n    build()\n')
    append_lines(file, "build", ("install.go()",))
    assert file.read_text() == (
        'def build():\n    base(os="debian12")\n    install.go()\n\n\ndef serve():\n    build()\n'
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def build():\n\tbase()\n", "def build():\n\tbase()\n\tinstall.go()\n"),
        (
            "def build():\n  base()\n  return\n",
            "def build():\n  base()\n  install.go()\n  return\n",
        ),
        ("def build():\r\n base()\r\n", "def build():\r\n base()\r\n install.go()\r\n"),
        ("def build():\n x = '\x0c \u2028'\n", "def build():\n x = '\x0c \u2028'\n install.go()\n"),
    ],
    ids=["tabs", "return", "newlines of Windows", "separators in text"],
)
def test_added_lines_keep_the_form_of_the_file(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "build.envd"
    file.write_bytes(text.encode())
    append_lines(file, "build", ("install.go()",))
    assert file.read_bytes().decode() == expected


@pytest.mark.parametrize(
    "text", ["def build(): base()\n", "def build():\n    base()\\\n\n\nx = 1\n"]
)
def test_a_function_without_a_place_for_lines_is_not_changed(tmp_path: Path, text: str) -> None:
    file = tmp_path / "build.envd"
    file.write_text(text)
    with pytest.raises(UsageError, match="cannot add lines to function build"):
        append_lines(file, "build", ("install.go()",))
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("inside", "outside"), [(0o600, 0o600), (0o700, 0o700), (0o755, 0o755), (0o4444, 0o644)]
)
def test_private_files_stay_private_in_the_project(
    tmp_path: Path, inside: int, outside: int
) -> None:
    write_file(tmp_path / "tree/etc/key", "secret")
    (tmp_path / "tree/etc/key").chmod(inside)
    changes = EnvironmentChanges(files=(ChangedFile("added", "/etc/key", 6),))
    copy_files(changes, tmp_path / "tree", tmp_path)
    copied = tmp_path / "environment-files/etc/key"
    assert copied.read_text() == "secret"
    assert copied.stat().st_mode & 0o7777 == outside


def test_lines_are_added_once(tmp_path: Path) -> None:
    file = tmp_path / "build.envd"
    file.write_text("def build():\n    base()\n")
    for lines in (("install.go()",), ("install.go( )", "install.r()"), ("install.go()",)):
        append_lines(file, "build", lines)
    assert file.read_text() == "def build():\n    base()\n    install.go()\n    install.r()\n"


def test_a_missing_function_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "build.envd"
    file.write_text("def build():\n    pass\n")
    with pytest.raises(UsageError, match="no function serve"):
        append_lines(file, "serve", ("install.go()",))
