"""Detection and reports of a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from danlu.errors import StoreError
from danlu.util.disk_full import (
    disk_full_error,
    is_disk_full,
    ran_out_of_space,
    translate_disk_full,
)

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


class FakeStatvfs:
    """The result of statvfs(3) for a disk."""

    f_bsize = f_frsize = 4096

    def __init__(self, free: int, *, files: int = 1000, free_files: int = 500) -> None:
        self.f_bavail, self.f_files, self.f_favail = free // 4096, files, free_files


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FakeStatvfs:
    """A disk with half a gigabyte left."""
    disk = FakeStatvfs(500 << 20)
    monkeypatch.setattr(os, "statvfs", lambda place: disk)
    return disk


def test_disk_without_free_space_counts_as_full(disk: FakeStatvfs, tmp_path: Path) -> None:
    assert not ran_out_of_space(tmp_path)
    disk.f_bavail = 10
    assert ran_out_of_space(tmp_path)


def test_disk_without_free_inodes_counts_as_full_unless_inodes_are_not_counted(
    disk: FakeStatvfs, tmp_path: Path
) -> None:
    disk.f_favail = 0
    assert ran_out_of_space(tmp_path)
    disk.f_files = 0
    assert not ran_out_of_space(tmp_path)


def test_program_output_counts_if_it_cleaned_up_afterwards(
    disk: FakeStatvfs, tmp_path: Path
) -> None:
    output = ["a", "tar: x: Cannot write: No space left on device", "b"]
    assert ran_out_of_space(tmp_path, output)
    # With gigabytes free it was /dev/shm, or another disk.
    disk.f_bavail = 5 << 20
    assert not ran_out_of_space(tmp_path, output)
    assert ran_out_of_space(tmp_path, ["cp: Disk quota exceeded"])


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOSPC])
@pytest.mark.parametrize("call", ["open", "posix_fallocate", "fsync"])
def test_an_exhausted_quota_counts_although_the_disk_has_space(
    disk: FakeStatvfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    assert ran_out_of_space(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_not_full(
    disk: FakeStatvfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "open", refuse)
    assert not ran_out_of_space(tmp_path)


def test_full_disk_error_keeps_one_line_of_a_long_output() -> None:
    line = "dpkg: error: failed to write (No space left on device)"
    error = disk_full_error("x", output=["Unpacking a", line, f"{line} again", "Errors: a"])
    assert error.details == (line,)
    assert disk_full_error("x", output=["Unpacking a"]).details == ()


@pytest.mark.parametrize(
    "error", [NO_SPACE, OSError(errno.EDQUOT, ""), ExceptionGroup("", [ValueError(), NO_SPACE])]
)
def test_full_disk_error_has_a_hint(error: Exception) -> None:
    message = "no space left on the disk that holds x"
    with (
        pytest.raises(StoreError, match=message) as caught,
        translate_disk_full("x", hint="buy one"),
    ):
        raise error
    assert caught.value.hint == "buy one"


@pytest.mark.parametrize("error", [OSError(errno.EIO, ""), ExceptionGroup("", [ValueError()])])
def test_other_errors_are_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)), translate_disk_full("x"):
        raise error
    assert not is_disk_full(error)
