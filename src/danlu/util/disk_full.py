"""Detect a full disk and report it, whether our own write failed or that of a program we ran."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from danlu.errors import StoreError

_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)

#: strerror(3) of these errors; most programs print it, and most in English.
_NO_SPACE_TEXT = "No space left on device"
_NO_QUOTA_TEXT = "Disk quota exceeded"

_FULL_BELOW_BYTES = 1 << 20
#: A quota that leaves less than this counts as exhausted.
_PROBE_BYTES = 16 << 20
#: With more than this, "no space" was about something else: /dev/shm, or a separate limit.
_AMPLE_BYTES = 1 << 30

_STORE_HINT = (
    "free some with `danlu image prune`, or move danlu's data with DANLU_HOME; finished steps are"
    " kept, and the next build continues from there"
)


def disk_full_error(
    what: str, *, output: Iterable[str] = (), hint: str = _STORE_HINT
) -> StoreError:
    """Return the error for a full disk that holds ``what``, which belongs to danlu.

    Of a program's ``output``, which repeats it in many ways, the first line that says so is kept.
    """
    found = [line for line in output if reports_disk_full(line)]
    return StoreError(
        f"no space left on the disk that holds {what}", details=tuple(found[:1]), hint=hint
    )


def is_disk_full(error: BaseException) -> bool:
    """Return whether ``error`` means a full disk or an exhausted quota."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL_ERRNOS


def reports_disk_full(text: str) -> bool:
    """Return whether a program's output names a full disk or an exhausted quota."""
    return _NO_SPACE_TEXT in text or _NO_QUOTA_TEXT in text


def ran_out_of_space(
    place: Path, output: Iterable[str] = (), *, full_below: int = _FULL_BELOW_BYTES
) -> bool:
    """Return whether a program that failed in ``place`` with this output had run out of disk space.

    With less than ``full_below`` bytes, on the disk or of a quota, it counts as full, whatever the
    program printed. It may have removed what it had written since then, so what it printed counts
    too.
    """
    lines = list(output)
    if any(_NO_QUOTA_TEXT in line for line in lines):
        return True
    status = os.statvfs(place)
    free = status.f_bavail * status.f_frsize
    # Some file systems (btrfs) do not count inodes and report 0 of 0.
    if free < full_below or (status.f_files and not status.f_favail):
        return True
    if free < _AMPLE_BYTES and any(_NO_SPACE_TEXT in line for line in lines):
        return True
    return _is_quota_exhausted(place, min(full_below, _PROBE_BYTES))


def _is_quota_exhausted(place: Path, count: int) -> bool:
    """Return whether ``count`` bytes cannot be allocated in ``place``.

    statvfs(3) does not know the quotas of users and directories.
    """
    path = place / f".quota-probe.{os.urandom(6).hex()}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.unlink(path)
            os.posix_fallocate(descriptor, 0, count)
            # NFS reports an exhausted quota only here.
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return is_disk_full(error)
    return False


@contextmanager
def translate_disk_full(what: str, *, hint: str = _STORE_HINT) -> Iterator[None]:
    """Raise a full-disk error inside the block as :func:`disk_full_error` of ``what``."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise disk_full_error(what, hint=hint) from error
    except ExceptionGroup as group:
        if group.subgroup(is_disk_full) is None:
            raise
        raise disk_full_error(what, hint=hint) from group
