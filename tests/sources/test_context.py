"""Which files of a project belong to the build context, and their digests."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from danlu.errors import DanluError, UsageError
from danlu.sources.build_context import (
    ContextEntry,
    copy_entries,
    digest_path,
    find_ignored,
    list_entries,
)
from danlu.util.safe_paths import ProjectTree


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "src/pkg").mkdir(parents=True)
    (tmp_path / "src/a.py").write_text("a")
    (tmp_path / "src/pkg/b.py").write_text("b")
    (tmp_path / "data.csv").write_text("1,2")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text("ref")
    return tmp_path


def inside(project: Path, source: str) -> list[str]:
    with ProjectTree(project) as tree:
        return [member.target for member in list_entries(tree, source)]


def test_a_directory_is_listed_recursively(project: Path) -> None:
    assert inside(project, "src") == ["a.py", "pkg", "pkg/b.py"]


def test_a_file_gives_itself(project: Path) -> None:
    with ProjectTree(project) as tree:
        assert [(m.target, m.is_named) for m in list_entries(tree, "data.csv")] == [
            ("data.csv", True)
        ]


def test_a_pattern_selects_matching_files(project: Path) -> None:
    assert inside(project, "*.csv") == ["data.csv"]


def test_the_repository_itself_never_counts(project: Path) -> None:
    assert ".git" not in inside(project, ".")


@pytest.mark.parametrize(
    ("name", "lines", "gone"),
    [
        (".danluignore", "*.py\n!b.py", ["src/a.py"]),
        (".gitignore", "pkg/", ["src/pkg", "src/pkg/b.py"]),
        (".dockerignore", "*.csv\n# note\nsrc/pkg", ["data.csv", "src/pkg", "src/pkg/b.py"]),
        (".dockerignore", "a.py", []),
    ],
)
def test_ignored_files_do_not_count(project: Path, name: str, lines: str, gone: list[str]) -> None:
    before = inside(project, ".")
    (project / name).write_text(lines)
    assert sorted({*before, name} - set(inside(project, "."))) == gone


def test_our_own_ignore_file_wins(project: Path) -> None:
    (project / ".gitignore").write_text("*.csv")
    (project / ".danluignore").write_text("*.py")
    assert "data.csv" in inside(project, ".")


def test_times_do_not_change_the_digest_but_content_does(project: Path) -> None:
    before = digest_path(project, "src")
    os.utime(project / "src/a.py", (1, 1))
    assert digest_path(project, "src") == before
    (project / "src/a.py").write_text("A")
    assert digest_path(project, "src") != before


def test_the_executable_bit_changes_the_digest_and_the_rest_of_the_mode_does_not(
    project: Path,
) -> None:
    file = project / "src/a.py"
    file.chmod(0o644)
    before = digest_path(project, "src")
    file.chmod(0o600)
    assert digest_path(project, "src") == before
    file.chmod(0o755)
    assert digest_path(project, "src") != before


def test_a_renamed_file_changes_the_digest(project: Path) -> None:
    before = digest_path(project, "src")
    (project / "src/a.py").rename(project / "src/c.py")
    assert digest_path(project, "src") != before


def test_a_link_counts_by_its_target(project: Path) -> None:
    link = project / "src/link"
    link.symlink_to("a.py")
    before = digest_path(project, "src")
    link.unlink()
    link.symlink_to("pkg/b.py")
    assert digest_path(project, "src") != before


@pytest.mark.parametrize("source", ["../x", "/etc/passwd", "src/../../x"])
def test_nothing_outside_the_project_is_read(project: Path, source: str) -> None:
    with pytest.raises(UsageError, match="outside the project"):
        inside(project, source)


@pytest.mark.parametrize("source", ["nope", "*.nope"])
def test_a_missing_path_is_an_error(project: Path, source: str) -> None:
    with pytest.raises(UsageError, match="not found"):
        inside(project, source)


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the user's that is not the project's to read."""
    directory = tmp_path_factory.mktemp("outside")
    (directory / "shadow").write_text("root:secret")
    return directory


@pytest.mark.parametrize("source", ["dd/shadow", "dd/.", "dd/sub", "src/../dd/shadow", "d*/shadow"])
def test_a_link_in_the_path_does_not_lead_out(project: Path, outside: Path, source: str) -> None:
    (outside / "sub").mkdir()
    (project / "dd").symlink_to(outside)
    if source == "dd/.":
        assert inside(project, source) == ["dd"], "the link itself, not what it leads to"
        return
    with pytest.raises(UsageError) as caught:
        inside(project, source)
    assert "leads out of the project" in caught.value.message
    assert f"dd is a link to {outside}" in caught.value.message
    assert caught.value.hint


def test_a_pattern_passes_over_linked_directories_that_are_ignored(
    project: Path, outside: Path
) -> None:
    (project / "dd").symlink_to(outside)
    (project / "src/shadow").write_text("ours")
    (project / ".danluignore").write_text("dd\n")
    assert inside(project, "*/shadow") == ["shadow"]


@pytest.mark.parametrize("target", ["src", "./src/../src", "{project}/src"])
def test_a_link_to_a_place_inside_is_followed(project: Path, target: str) -> None:
    (project / "link").symlink_to(target.format(project=project))
    assert inside(project, "link/pkg") == ["b.py"]
    assert inside(project, "link/pkg/b.py") == ["b.py"]


def test_an_ignore_file_is_not_read_outside_the_project(project: Path, outside: Path) -> None:
    (project / ".danluignore").symlink_to(outside / "shadow")
    with pytest.raises(UsageError, match="leads out"):
        inside(project, ".")


def copy_source(project: Path, source: str, place: Path) -> str:
    with ProjectTree(project) as tree:
        return copy_entries(tree, list_entries(tree, source), lambda member: place / member.target)


def test_a_copy_has_the_digest_of_its_content(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("place")
    assert copy_source(project, "src", directory) == digest_path(project, "src")
    assert digest_path(directory, ".") == digest_path(project, "src")


@pytest.mark.parametrize("swapped", ["src/a.py", "src/pkg", "src"])
def test_a_link_that_is_swapped_in_after_the_listing_leads_nowhere(
    project: Path, outside: Path, tmp_path_factory: pytest.TempPathFactory, swapped: str
) -> None:
    (outside / "pkg").mkdir()
    for name in ("a.py", "b.py", "pkg/b.py"):
        (outside / name).write_text("secret")
    directory = tmp_path_factory.mktemp("place")
    with ProjectTree(project) as tree:
        members = list_entries(tree, "src")
        tree.forget()  # as after many other directories
        (project / swapped).rename(project / "kept")
        (project / swapped).symlink_to(outside / "a.py" if swapped == "src/a.py" else outside)
        with pytest.raises(DanluError):
            copy_entries(tree, members, lambda member: directory / member.target)
    assert not any("secret" in path.read_text() for path in directory.rglob("*.py"))


def test_two_matches_of_one_name_never_write_through_a_link(project: Path, outside: Path) -> None:
    for name in ("a", "b"):
        (project / name).mkdir()
    (project / "a/d").symlink_to(outside)
    (project / "b/d").mkdir()
    (project / "b/d/x").write_text("x")
    directory = project / "place"
    directory.mkdir()
    with pytest.raises(UsageError, match="both copied to d"):
        copy_source(project, "[ab]/d", directory)
    assert not (outside / "x").exists()


def test_names_that_are_not_utf8_are_copied(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("place")
    odd = os.fsencode(project) + b"/src/caf\xe9"
    with open(odd, "w") as file:
        file.write("coffee")
    os.symlink(b"caf\xe9", os.fsencode(project) + b"/src/li\xe8n")
    assert copy_source(project, "src", directory) == digest_path(project, "src")
    assert sorted(os.listdir(os.fsencode(directory))) == [b"a.py", b"caf\xe9", b"li\xe8n", b"pkg"]


def test_pipes_are_copied_as_pipes_and_sockets_are_not(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path_factory.mktemp("place")
    before = digest_path(project, "src")
    os.mkfifo(project / "src/pipe")
    monkeypatch.chdir(project)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("src/socket")
    assert digest_path(project, "src") != before
    copy_source(project, "src", directory)
    assert (directory / "pipe").is_fifo()
    assert not (directory / "socket").exists()
    with pytest.raises(UsageError, match="socket or a device"):
        inside(project, "src/socket")


def test_danlus_lock_file_is_not_part_of_the_project(project: Path) -> None:
    before = digest_path(project, ".")
    (project / "danlu.lock").write_text("version = 1\n")
    assert digest_path(project, ".") == before
    assert inside(project, "danlu.lock") == ["danlu.lock"], "but it can be named"


def test_sockets_and_devices_are_special(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    kinds = {
        name: ContextEntry("a", "a", os.stat(path)).is_special
        for name, path in {
            "device": Path("/dev/null"),
            "pipe": tmp_path / "pipe",
            "file": tmp_path / "file",
            "directory": tmp_path,
        }.items()
    }
    assert kinds == {"device": True, "pipe": False, "file": False, "directory": False}


def test_files_that_do_not_belong_to_the_project_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("*.log\nout\n!keep.log\n")
    paths = ["a.log", "keep.log", "src/b.log", "out/x", "src/a.py", "danlu.lock", ".git/HEAD"]
    with ProjectTree(tmp_path) as tree:
        assert find_ignored(tree, paths) == {"a.log", "out/x", "danlu.lock", ".git/HEAD"}
