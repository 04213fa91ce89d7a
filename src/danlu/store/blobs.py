"""Blobs in the store: files below ``blobs/`` named by their digest, and a row each."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from danlu.errors import ChecksumError
from danlu.oci.digest import Digest, parse_digest
from danlu.store.core import SETTLED, Core
from danlu.store.staging import new_file

__all__ = ["BlobWriter", "file_digest", "get", "path_of"]


def path_of(core: Core, digest: str) -> Path:
    """Where the blob lies, whether it is there or not; :class:`ValueError` if not a digest."""
    return core.blobs / parse_digest(digest).removeprefix("sha256:")


def file_digest(path: Path) -> Digest:
    """The digest of a file."""
    with path.open("rb") as file:
        return Digest("sha256:" + hashlib.file_digest(file, "sha256").hexdigest())


def get(core: Core, digest: Digest) -> Path | None:
    """The blob's file, or None where it is absent or damaged beyond use."""
    path = path_of(core, digest)
    with core.reading():
        core.pin("blobs", [digest])
        row = core.row("SELECT size, boot, used FROM blobs WHERE digest = ?", (digest,))
        if row is None or not _is_there(path, row[0]):
            return None
        core.used("blobs", digest, row[2])
    if row[1] not in (core.boot, SETTLED) and not _verify(core, digest, path):
        return None
    return path


def _is_there(path: Path, size: int) -> bool:
    try:
        return os.lstat(path).st_size == size
    except FileNotFoundError:
        return False


def _verify(core: Core, digest: str, path: Path) -> bool:
    """Whether a blob that an earlier boot wrote reached the disk whole."""
    with core.faults:
        same = file_digest(path) == digest
    with core.writing() as connection:
        if same:
            connection.execute("UPDATE blobs SET boot = ? WHERE digest = ?", (SETTLED, digest))
        else:
            connection.execute("DELETE FROM blobs WHERE digest = ?", (digest,))
    return same


class BlobWriter:
    """Takes a blob's bytes in pieces; without :meth:`commit` nothing of it stays."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._hash = hashlib.sha256()
        self._open = True
        self.size = 0
        with core.faults:
            self._path, self._descriptor = new_file(core.staging)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> int:
        """Append ``data``, all of it."""
        view = memoryview(data)
        with self._core.faults:
            while view:
                view = view[os.write(self._descriptor, view) :]
        self._hash.update(data)
        self.size += len(data)
        return len(data)

    def digest(self) -> Digest:
        """The digest of what was written so far."""
        return Digest("sha256:" + self._hash.hexdigest())

    def commit(self, expected: Digest | None = None) -> Digest:
        """Put the blob in the store.

        Raises :class:`ChecksumError` where its digest is not ``expected``.
        """
        digest = self.digest()
        if expected is not None and digest != expected:
            raise ChecksumError(f"expected {expected}, got {digest} ({self.size} bytes)")
        core, path = self._core, path_of(self._core, digest)
        known: object = True
        try:
            with core.writing() as connection:
                core.pin("blobs", [digest])
                known = core.row("SELECT 1 FROM blobs WHERE digest = ?", (digest,))
                os.replace(self._path, path)
                connection.execute(
                    "INSERT OR REPLACE INTO blobs (digest, size, boot, used) VALUES (?, ?, ?, ?)",
                    (digest, self.size, core.boot, core.clock()),
                )
        except BaseException:
            # Without its row (a full disk) the file would only take room.
            if known is None:
                with suppress(OSError):
                    os.rename(path, self._path)
            raise
        self._close()
        return digest

    def _close(self) -> None:
        if self._open:
            self._open = False
            os.close(self._descriptor)

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._open:
            self._path.unlink(missing_ok=True)
            self._close()
