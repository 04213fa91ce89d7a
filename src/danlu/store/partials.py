"""Beginnings of blobs whose download was interrupted, kept so that a later one can continue."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from danlu.errors import ChecksumError
from danlu.oci.digest import Digest
from danlu.store.staging import lock_if_orphan, new_file

#: Less than this is downloaded again sooner than looked after.
_MIN_KEPT_BYTES = 1 << 20


class PartialBlob:
    """A file that receives a blob; ``received`` bytes are in it from an earlier download."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file
        self.received = os.fstat(file.fileno()).st_size

    def restart(self) -> None:
        """Discard everything received."""
        self.file.seek(0)
        self.file.truncate()
        self.received = 0


@contextmanager
def open_partial(directory: Path, staging: Path, digest: Digest) -> Iterator[PartialBlob]:
    """Open the partial download of a blob in ``directory``, locked against other processes.

    The file is removed when the block ends, or fails because the bytes are wrong; other failures
    keep it for the next download. A process that downloads the same blob at the same time gets a
    new file in ``staging``.
    """
    directory.mkdir(exist_ok=True)
    path = directory / digest.partition(":")[2]
    descriptor = _open_locked(path)
    if descriptor is None:
        path, descriptor = new_file(staging)
    with open(descriptor, "r+b") as file:  # closing it releases the lock
        try:
            yield PartialBlob(path, file)
        except ChecksumError:
            path.unlink()
            raise
        except BaseException:
            with suppress(OSError):  # a full disk; what was written before stays
                file.flush()
            if path.parent == staging or path.stat().st_size < _MIN_KEPT_BYTES:
                path.unlink()
            raise
        path.unlink()


def _open_locked(path: Path) -> int | None:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have removed the file between the two calls.
        if os.path.samestat(os.lstat(path), os.fstat(descriptor)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def remove_partials(directory: Path, *, older_than: float = 0) -> int:
    """Remove the files that nobody writes; return their size in bytes."""
    removed = 0
    newest = time.time() - older_than
    with suppress(FileNotFoundError):
        for path in sorted(directory.iterdir()):
            with lock_if_orphan(path) as orphan:
                if orphan and path.stat().st_mtime <= newest:
                    removed += path.stat().st_size
                    path.unlink()
    return removed
