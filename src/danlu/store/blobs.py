"""Blobs: files in ``blobs/`` named by their digest, with one row each."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from danlu.errors import ChecksumError
from danlu.oci.digest import Digest, parse_digest
from danlu.store.index import SYNCED, StoreIndex
from danlu.store.staging import new_file


def blob_path(index: StoreIndex, digest: str) -> Path:
    """Return the path of a blob, present or not; raises :class:`ValueError` for a non-digest."""
    return index.blobs / parse_digest(digest).removeprefix("sha256:")


def file_digest(path: Path) -> Digest:
    """Return the digest of a file."""
    with path.open("rb") as file:
        return Digest("sha256:" + hashlib.file_digest(file, "sha256").hexdigest())


def get(index: StoreIndex, digest: Digest) -> Path | None:
    """Return the blob's file, or None if it is missing or damaged."""
    path = blob_path(index, digest)
    with index.reading():
        index.pin("blobs", [digest])
        row = index.query_row("SELECT size, boot, used FROM blobs WHERE digest = ?", (digest,))
        # The size catches what a crash truncated, at every use. Hashing would cost more than a
        # build that has nothing to do, so it is done once per boot, below.
        if row is None or not _exists_with_size(path, row[0]):
            return None
        index.record_use("blobs", digest, row[2])
    if row[1] not in (index.boot, SYNCED) and not _verify_digest(index, digest, path):
        return None
    return path


def _exists_with_size(path: Path, size: int) -> bool:
    try:
        return os.lstat(path).st_size == size
    except FileNotFoundError:
        return False


def _verify_digest(index: StoreIndex, digest: str, path: Path) -> bool:
    """Check a blob that was written under an earlier boot; drop it if it is damaged."""
    with index.translated_errors:
        intact = file_digest(path) == digest
    with index.writing() as connection:
        if intact:
            connection.execute("UPDATE blobs SET boot = ? WHERE digest = ?", (SYNCED, digest))
        else:
            connection.execute("DELETE FROM blobs WHERE digest = ?", (digest,))
    return intact


class BlobWriter:
    """Takes a blob in chunks; without :meth:`commit` nothing is stored."""

    def __init__(self, index: StoreIndex) -> None:
        self._index = index
        self._hash = hashlib.sha256()
        self._open = True
        self.size = 0
        with index.translated_errors:
            self._path, self._descriptor = new_file(index.staging)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> int:
        """Append all of ``data``."""
        view = memoryview(data)
        with self._index.translated_errors:
            while view:
                view = view[os.write(self._descriptor, view) :]
        self._hash.update(data)
        self.size += len(data)
        return len(data)

    def digest(self) -> Digest:
        """Return the digest of the data written so far."""
        return Digest("sha256:" + self._hash.hexdigest())

    def commit(self, expected: Digest | None = None) -> Digest:
        """Add the blob to the store and return its digest.

        Raises :class:`ChecksumError` if the digest is not ``expected``.
        """
        digest = self.digest()
        if expected is not None and digest != expected:
            raise ChecksumError(f"expected {expected}, got {digest} ({self.size} bytes)")
        index, path = self._index, blob_path(self._index, digest)
        known: object = True
        try:
            with index.adding() as connection:
                index.pin("blobs", [digest])
                known = index.query_row("SELECT 1 FROM blobs WHERE digest = ?", (digest,))
                # The file before its row: a crash between the two leaves garbage, which is
                # collected. A row without a file would be an object that does not exist.
                os.replace(self._path, path)
                connection.execute(
                    "INSERT OR REPLACE INTO blobs (digest, size, boot, used) VALUES (?, ?, ?, ?)",
                    (digest, self.size, index.boot, index.clock()),
                )
        except BaseException:
            # The row could not be written (full disk): take the file back, it would be garbage.
            if known is None:
                with suppress(OSError):
                    os.rename(path, self._path)
            raise
        self._close_file()
        return digest

    def _close_file(self) -> None:
        if self._open:
            self._open = False
            os.close(self._descriptor)

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._open:
            self._path.unlink(missing_ok=True)
            self._close_file()


def restore(index: StoreIndex, digest: str) -> None:
    """Add the row of a blob that lost it; the caller has verified its file."""
    size = blob_path(index, digest).stat().st_size
    with index.writing() as connection:
        connection.execute(
            "INSERT OR IGNORE INTO blobs (digest, size, boot, used) VALUES (?, ?, ?, ?)",
            (digest, size, index.boot, index.clock()),
        )
