"""Locks between processes: ``flock`` on a file, released by the kernel when a process dies."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def file_lock(path: str | os.PathLike[str], *, shared: bool = False) -> Iterator[None]:
    """Hold the lock ``path``, waiting for it. ``shared`` holders do not exclude each other."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Lock files are never deleted: another process could hold the lock on a deleted inode.
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def try_file_lock(path: str | os.PathLike[str], *, shared: bool = False) -> Iterator[bool]:
    """Hold the lock ``path`` if it is free; the context's value says whether it was."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def lock_is_held(lock: str | os.PathLike[str]) -> bool:
    """Return whether a process holds the exclusive lock; False if the file does not exist."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two processes that check at the same time don't see each other's lock.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
