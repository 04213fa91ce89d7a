"""When a disk counts as full, and how that is told."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from danlu.errors import StoreError
from danlu.util.space import is_full, told, was_full

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


class Disk:
    """What statvfs(3) says of a disk."""

    f_bsize = f_frsize = 4096

    def __init__(self, free: int, *, files: int = 1000, free_files: int = 500) -> None:
        self.f_bavail, self.f_files, self.f_favail = free // 4096, files, free_files


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk with half a gigabyte left."""
    disk = Disk(500 << 20)
    monkeypatch.setattr(os, "statvfs", lambda place: disk)
    return disk


def test_a_disk_without_room_was_full_whatever_was_said(disk: Disk, tmp_path: Path) -> None:
    assert not was_full(tmp_path)
    disk.f_bavail = 10
    assert was_full(tmp_path)


def test_a_disk_without_inodes_was_full_but_some_count_none(disk: Disk, tmp_path: Path) -> None:
    disk.f_favail = 0
    assert was_full(tmp_path)
    disk.f_files = 0
    assert not was_full(tmp_path)


def test_who_cleaned_up_after_itself_is_believed(disk: Disk, tmp_path: Path) -> None:
    said = ["a", "tar: x: Cannot write: No space left on device", "b"]
    assert was_full(tmp_path, said)
    # With gigabytes free it was /dev/shm, or another disk.
    disk.f_bavail = 5 << 20
    assert not was_full(tmp_path, said)
    assert was_full(tmp_path, ["cp: Disk quota exceeded"])


@pytest.mark.parametrize(
    "error", [NO_SPACE, OSError(errno.EDQUOT, ""), ExceptionGroup("", [ValueError(), NO_SPACE])]
)
def test_a_full_disk_is_told_with_what_helps(error: Exception) -> None:
    message = "no space left on the disk that holds x"
    with pytest.raises(StoreError, match=message) as caught, told("x", hint="buy one"):
        raise error
    assert caught.value.hint == "buy one"


@pytest.mark.parametrize("error", [OSError(errno.EIO, ""), ExceptionGroup("", [ValueError()])])
def test_other_failures_are_left_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)), told("x"):
        raise error
    assert not is_full(error)
