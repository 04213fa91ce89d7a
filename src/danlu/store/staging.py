"""Private places for work in progress, and the removal of those whose owner died.

A place is locked by ``flock`` on itself for as long as its owner lives; the kernel drops the lock
with the process, so a place that can be locked is dead.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from danlu.util.files import remove_tree, spread_below

__all__ = ["dead", "new_directory", "new_file", "remove_trees", "sweep"]


def new_directory(parent: Path) -> tuple[Path, int]:
    """A new locked directory below ``parent``, and the descriptor that holds its lock."""
    spread_below(parent)
    while True:
        path = parent / os.urandom(6).hex()
        os.mkdir(path, 0o755)
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if _take(path, descriptor):
                # Whatever the umask: a layer's tree may be this directory, and so "/".
                os.fchmod(descriptor, 0o755)
                return path, descriptor


def new_file(parent: Path) -> tuple[Path, int]:
    """A new locked file below ``parent``, and its descriptor, open for reading and writing."""
    while True:
        path = parent / os.urandom(6).hex()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o644)
        if _take(path, descriptor):
            return path, descriptor


def _take(path: Path, descriptor: int) -> bool:
    """Lock; False where a sweeper came between creation and lock and has removed it."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        if os.path.samestat(os.lstat(path), os.fstat(descriptor)):
            return True
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return False


@contextmanager
def dead(path: Path) -> Iterator[bool]:
    """Whether the owner of ``path`` is gone; while inside, nobody else finds it dead too."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        # Gone meanwhile, or not of our making (a link): not ours to judge.
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


def sweep(parent: Path, *, older_than: float = 0) -> list[OSError]:
    """Remove the dead places below ``parent``, those of some age in seconds.

    Gives what hindered it: one place that cannot be removed must not keep the others.
    """
    newest = time.time() - older_than
    failures: list[OSError] = []
    for name in os.listdir(parent):
        path = parent / name
        with suppress(FileNotFoundError):
            if older_than and os.lstat(path).st_mtime > newest:
                continue
            with dead(path) as gone:
                if gone:
                    failures += remove_trees([path])
    return failures


def remove_trees(paths: Iterable[Path]) -> list[OSError]:
    """Remove each of ``paths`` that can be removed; gives what hindered the rest."""
    failures: list[OSError] = []
    for path in paths:
        try:
            remove_tree(path)
        except OSError as error:
            failures.append(error)
    return failures
