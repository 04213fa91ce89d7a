"""Private files and directories for work in progress, and removal of those whose owner died.

Each entry is locked with ``flock`` on itself while its owner lives. The kernel releases the lock
when the process exits, so an entry that can be locked has no owner: it is an orphan.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from danlu.util.files import remove_tree, set_topdir_flag


def new_directory(parent: Path) -> tuple[Path, int]:
    """Create a locked directory in ``parent``; return it and the descriptor that holds the lock."""
    set_topdir_flag(parent)
    while True:
        path = parent / os.urandom(6).hex()
        os.mkdir(path, 0o755)
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if _lock_if_present(path, descriptor):
                # Independent of the umask: this directory may become a layer's tree, and so "/".
                os.fchmod(descriptor, 0o755)
                return path, descriptor


def new_file(parent: Path) -> tuple[Path, int]:
    """Create a locked file in ``parent``; return it and its descriptor, open for read and write."""
    while True:
        path = parent / os.urandom(6).hex()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o644)
        if _lock_if_present(path, descriptor):
            return path, descriptor


def _lock_if_present(path: Path, descriptor: int) -> bool:
    """Lock; return False if a sweep removed the entry between its creation and the lock."""
    # Waits for a sweep that took the new entry for an orphan and is removing it.
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        # The lock is worth nothing if the sweep removed the name: nobody else would find it.
        if os.path.samestat(os.lstat(path), os.fstat(descriptor)):
            return True
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return False


@contextmanager
def lock_if_orphan(path: Path) -> Iterator[bool]:
    """Yield whether the owner of ``path`` is gone, locking the entry against other sweeps."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        # Removed in the meantime, or not created by us (a symlink): leave it alone.
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield os.path.lexists(path)
    finally:
        os.close(descriptor)


def has_orphans(parent: Path) -> bool:
    """Return whether the owner of any entry in ``parent`` is gone."""
    for name in os.listdir(parent):
        with lock_if_orphan(parent / name) as orphan:
            if orphan:
                return True
    return False


def remove_orphans(parent: Path, *, older_than: float = 0) -> list[OSError]:
    """Remove the orphans in ``parent`` that are at least ``older_than`` seconds old.

    Returns the errors: an entry that cannot be removed must not keep the others.
    """
    newest = time.time() - older_than
    failures: list[OSError] = []
    for name in os.listdir(parent):
        path = parent / name
        with suppress(FileNotFoundError):
            if older_than and os.lstat(path).st_mtime > newest:
                continue
            with lock_if_orphan(path) as orphan:
                if orphan:
                    failures += remove_trees([path])
    return failures


def remove_trees(paths: Iterable[Path]) -> list[OSError]:
    """Remove all ``paths``; return the errors of those that could not be removed."""
    failures: list[OSError] = []
    for path in paths:
        try:
            remove_tree(path)
        except OSError as error:
            failures.append(error)
    return failures
