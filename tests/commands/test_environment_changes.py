"""What was changed by hand in an environment, as lines of the build file."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.commands.environments.changes import (
    ChangedFile,
    EnvironmentChanges,
    collect_changes,
    render_build_lines,
)
from danlu.commands.environments.commit import append_lines
from danlu.errors import UsageError

SITE = "opt/venv/lib/python3.11/site-packages"


def write_file(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


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
    path = '/a"\\\n\udc80'
    changes = EnvironmentChanges(files=(ChangedFile("removed", path),))
    (line,) = render_build_lines(changes)
    assert "\n" not in line
    assert eval(line, {"run": lambda commands: commands}) is not None


def test_lines_are_added_to_the_end_of_the_function(tmp_path: Path) -> None:
    file = tmp_path / "build.envd"
    file.write_text('def build():\n    base(os="debian12")\n\n\ndef serve():\n    build()\n')
    append_lines(file, "build", ("install.go()",))
    assert file.read_text() == (
        'def build():\n    base(os="debian12")\n    install.go()\n\n\ndef serve():\n    build()\n'
    )


def test_a_missing_function_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "build.envd"
    file.write_text("def build():\n    pass\n")
    with pytest.raises(UsageError, match="no function serve"):
        append_lines(file, "serve", ("install.go()",))
