from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from danlu.util.files import (
    filesystem_type,
    have_same_content,
    mounts_below,
    remove_tree,
    set_topdir_flag,
    write_atomic,
)


def test_write_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    write_atomic(path, b"long old text")
    write_atomic(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ["b"]


def test_files_are_compared_by_their_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    large = b"x" * 200_000
    for content, other in ((b"", b""), (b"1", b"1"), (large, large)):
        first.write_bytes(content)
        second.write_bytes(other)
        assert have_same_content(first, second)
    for content, other in (
        (b"1", b"2"),
        (b"", b"1"),
        (large, large[:-1]),
        (large, large[:-1] + b"y"),
    ):
        first.write_bytes(content)
        second.write_bytes(other)
        for path in (first, second):
            os.utime(path, (5, 5))
        assert not have_same_content(first, second)
        assert not have_same_content(second, first)


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_atomic(tmp_path / "b", b"x")
    assert os.listdir(tmp_path) == ["b"]


def test_file_of_the_longest_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write_atomic(path, b"x")
    assert path.read_bytes() == b"x"


def test_removing_a_missing_path_does_nothing(tmp_path: Path) -> None:
    remove_tree(tmp_path / "absent")


def test_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "tree")
    remove_tree(tmp_path / "link")
    assert os.listdir(tmp_path) == ["kept"]


def test_tree_deeper_than_the_stack_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "deep"
    root.mkdir()
    home = os.open(".", os.O_RDONLY)
    try:
        os.chdir(root)
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
            os.close(os.open("file", os.O_CREAT))
    finally:
        os.fchdir(home)
        os.close(home)
    remove_tree(root)
    assert not root.exists()


_CLOSED = """
import os, shutil, sys  # shutil now: later we may not read the interpreter's files
from pathlib import Path
from danlu.util.files import remove_tree
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
root = Path(sys.argv[1]) / "tree"
below = root / "a" / "b" / "c"
below.mkdir(parents=True)
(below / "file").touch()
for path in (below, below.parent, below.parent.parent, root):
    path.chmod(0)
remove_tree(root)
assert not root.exists()
"""


def test_directories_without_permissions_are_removed() -> None:
    # Not tmp_path: only root may pass through the directories above it.
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        subprocess.run([sys.executable, "-c", _CLOSED, directory], check=True)


@pytest.mark.real
@pytest.mark.needs("root")
def test_tree_with_a_mount_is_not_removed(tmp_path: Path) -> None:
    root, target = tmp_path / "a tree", tmp_path / "a tree" / "b" / "mount point"
    target.mkdir(parents=True)
    project = tmp_path / "project"
    project.mkdir()
    (project / "work").write_text("years")
    subprocess.run(["mount", "--bind", str(project), str(target)], check=True)
    try:
        assert mounts_below(root) == [str(target)]
        with pytest.raises(OSError, match="mounted"):
            remove_tree(root)
    finally:
        subprocess.run(["umount", str(target)], check=True)
    assert (project / "work").read_text() == "years"
    remove_tree(root)
    assert not root.exists()


def test_topdir_flag_is_set_once_and_ignored_if_unsupported(tmp_path: Path) -> None:
    set_topdir_flag(tmp_path)
    set_topdir_flag(tmp_path)
    (tmp_path / "new").mkdir()
    assert (tmp_path / "new").is_dir()
    set_topdir_flag(tmp_path / "absent")


def test_the_type_of_a_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    assert filesystem_type(Path("/proc/self")) == "proc"
    (tmp_path / "link").symlink_to("/proc")
    assert filesystem_type(tmp_path / "link" / "self") == "proc"
    assert filesystem_type(Path("/")) == filesystem_type(Path("/procedures")) != ""
