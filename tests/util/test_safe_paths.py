"""Paths below a directory, and links that try to lead out of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.util.safe_paths import MAX_DEPTH, ProjectTree, write_beneath


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("secret")
    project = tmp_path / "project"
    (project / "a/b").mkdir(parents=True)
    (project / "a/file").write_text("ours")
    return project


def read(project: Path, path: str) -> str:
    with ProjectTree(project) as tree:
        return tree.read_text(path)


def link(project: Path, name: str, target: str) -> None:
    (project / name).symlink_to(target.format(project=project))


@pytest.mark.parametrize(
    "target",
    ["a/file", "./a/../a/file", "{project}/a/file", "a/b/../file", "a//file", "second"],
)
def test_links_inside_the_root_are_followed(project: Path, target: str) -> None:
    link(project, "second", "a/file")
    link(project, "link", target)
    assert read(project, "link") == "ours"


@pytest.mark.parametrize(
    "target",
    [
        *("../secret", "/etc/passwd", "a/../../secret", "{project}/../secret", "second"),
        *("../project/a/file", "/proc/self/root/etc/passwd", "{project}-other/file"),
    ],
)
def test_links_that_lead_outside_are_rejected(project: Path, target: str) -> None:
    (project.parent / "project-other").mkdir()
    (project.parent / "project-other/file").write_text("secret")
    link(project, "second", "../secret")
    link(project, "link", target)
    with pytest.raises(UsageError, match="leads out of the project project"):
        read(project, "link")


def test_project_may_be_reached_through_a_link(project: Path) -> None:
    alias = project.parent / "alias"
    alias.symlink_to(project)
    link(project, "link", "{project}/a/file")
    assert read(alias, "link") == "ours"
    assert read(alias, str(alias / "a/file")) == "ours"


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../secret", ".."])
def test_paths_that_lead_outside_are_rejected(project: Path, path: str) -> None:
    with pytest.raises(UsageError, match="is outside the project project"):
        read(project, path)


def test_symbolic_link_loop_is_rejected(project: Path) -> None:
    link(project, "one", "two")
    link(project, "two", "one")
    for path in ("one", "one/file"):
        with pytest.raises(UsageError, match="form a loop"):
            read(project, path)


def test_too_deep_tree_is_rejected(project: Path) -> None:
    deep = "/".join(["d"] * (MAX_DEPTH + 1))
    os.makedirs(project / deep)
    with pytest.raises(UsageError, match="directories deep"):
        read(project, f"{deep}/file")


def test_directory_swapped_for_a_link_is_not_entered(project: Path) -> None:
    with ProjectTree(project) as tree:
        assert tree.read_text("a/file") == "ours"
        (project / "a").rename(project / "b")
        (project / "a").symlink_to("..")
        (project.parent / "file").write_text("secret")
        assert tree.read_text("a/file") == "ours", "the directory that was opened"
        tree.forget()
        with pytest.raises(UsageError, match="leads out"):
            tree.read_text("a/file")


def test_the_real_path_has_no_links(project: Path) -> None:
    link(project, "link", "a")
    with ProjectTree(project) as tree:
        assert tree.real_path("link/file") == Path("a/file")
        assert tree.real_path("link/nothing") is None
        assert tree.real_path(".") == Path()


def test_pipe_is_rejected_without_blocking(project: Path) -> None:
    os.mkfifo(project / "pipe")
    with pytest.raises(UsageError, match="is not a file"):
        read(project, "pipe")


def test_missing_file_and_directory_raise_the_systems_errors(project: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(project, "a/nothing")
    with pytest.raises(FileNotFoundError):
        read(project, "a/file/below")
    with pytest.raises(IsADirectoryError):
        read(project, "a")


def test_writing_below_a_directory_follows_no_link(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "victim").write_text("before")
    write_beneath(root, "a/b/file", b"new", mode=0o755)
    assert (root / "a/b/file").read_bytes() == b"new"
    assert (root / "a/b/file").stat().st_mode & 0o777 == 0o755
    (root / "link").symlink_to(outside)
    with pytest.raises(UsageError, match="link is not a directory"):
        write_beneath(root, "link/victim", b"after")
    (root / "file").symlink_to(outside / "victim")
    write_beneath(root, "file", b"after")
    assert (outside / "victim").read_text() == "before"
    assert (root / "file").read_bytes() == b"after"
    assert sorted(path.name for path in root.iterdir()) == ["a", "file", "link"]


def test_writing_below_a_directory_opens_no_file_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("before")
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setattr(os, "urandom", bytes)
    os.link(victim, root / f".file.{bytes(6).hex()}")
    with pytest.raises(FileExistsError):
        write_beneath(root, "file", b"after")
    assert victim.read_text() == "before"
