"""A full disk, noticed and told in the user's words: by what we write, and by what others do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from danlu.errors import StoreError

__all__ = ["full_disk", "is_full", "told", "was_full"]

_FULL = (errno.ENOSPC, errno.EDQUOT)

#: What strerror(3) says of them; most programs print it, and most in English.
_NO_SPACE = "No space left on device"
_NO_QUOTA = "Disk quota exceeded"

#: A disk with less room (bytes) is full, whatever a program said.
_NOTHING = 1 << 20
#: With more, "no space" was said of something else: /dev/shm, a limit of its own.
_PLENTY = 1 << 30

_OURS = (
    "free some with `danlu image prune`, or move danlu's data with DANLU_HOME; what is finished"
    " is kept, and the next build goes on from there"
)


def full_disk(what: str, *, details: Iterable[str] = (), hint: str = _OURS) -> StoreError:
    """The error that the disk which holds ``what``, something of danlu's, is full."""
    return StoreError(
        f"no space left on the disk that holds {what}", details=tuple(details), hint=hint
    )


def is_full(error: BaseException) -> bool:
    """Whether ``error`` is that of a full disk or a used-up quota."""
    return isinstance(error, OSError) and error.errno in _FULL


def was_full(place: Path, said: Iterable[str] = ()) -> bool:
    """Whether a program that worked in ``place`` and failed, saying this, had no room.

    It may have removed what it had written since, so its own words count too.
    """
    lines = list(said)
    if any(_NO_QUOTA in line for line in lines):
        return True
    status = os.statvfs(place)
    free = status.f_bavail * status.f_frsize
    # Some file systems count no inodes and say 0 of 0.
    if free < _NOTHING or (status.f_files and not status.f_favail):
        return True
    return free < _PLENTY and any(_NO_SPACE in line for line in lines)


@contextmanager
def told(what: str, *, hint: str = _OURS) -> Iterator[None]:
    """Raise a full disk inside the block as :func:`full_disk` of ``what``."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise full_disk(what, hint=hint) from error
    except ExceptionGroup as group:
        if group.subgroup(is_full) is None:
            raise
        raise full_disk(what, hint=hint) from group
