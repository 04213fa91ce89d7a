"""Digests of a project's files, cached by their stat(2) data like in git's index."""

from __future__ import annotations

import hashlib
import os
import struct
import time
from pathlib import Path

import msgspec

from danlu.util.decoding import prepare_type
from danlu.util.files import write_atomic

_CHUNK_SIZE = 1 << 20
_VERSION = 1

#: Nanoseconds. A file that changed this shortly before it was hashed may change again without
#: getting another time ("racy git"), because times have a granularity, up to two seconds.
_RACY_NANOSECONDS = 2_000_000_000

_STAT = struct.Struct("<IQqqQ")

#: Unused digests are dropped when there are more of them than this, and more than used ones.
_MAX_UNUSED = 1000


def hash_descriptor(descriptor: int) -> bytes:
    """Return the SHA-256 of an open file."""
    digest = hashlib.sha256()
    while chunk := os.read(descriptor, _CHUNK_SIZE):
        digest.update(chunk)
    return digest.digest()


def _pack_status(status: os.stat_result) -> bytes:
    # Every write changes ctime, which no program can set; mtime alone can be set back.
    return _STAT.pack(
        status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
    )


class _SavedDigests(msgspec.Struct, array_like=True):
    version: int
    digests: dict[bytes, bytes]


class FileDigests:
    """SHA-256 of files by path in the project, valid while mode, size, times and inode are
    unchanged.

    This is only a cache: entries that are missing or damaged are computed again.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._old = _read_digests(file)
        self._used: dict[bytes, bytes] = {}
        self._changed = False

    @classmethod
    def of_project(cls, project: Path, cache: Path) -> FileDigests:
        """Open the cache for the directory ``project``, stored in ``cache``."""
        key = hashlib.sha256(os.fsencode(os.path.abspath(project))).hexdigest()[:32]
        return cls(cache / "file-digests" / key)

    def find(self, path: bytes, status: os.stat_result) -> bytes | None:
        """Return the digest of ``path`` if the file is unchanged since it was hashed."""
        known = self._used.get(path) or self._old.get(path)
        if known is None or known[: _STAT.size] != _pack_status(status):
            return None
        self._used[path] = known
        return known[_STAT.size :]

    def hash_file(self, path: bytes, descriptor: int) -> bytes:
        """Hash an open file; cache the result unless the file changed meanwhile or just before."""
        started = time.time_ns()
        before = os.fstat(descriptor)
        digest = hash_descriptor(descriptor)
        packed = _pack_status(before)
        # A file that is changed twice within the granularity of times looks unchanged afterwards
        # (git's "racy" files, racy-git.txt), so young ones are not cached.
        if (
            packed == _pack_status(os.fstat(descriptor))
            and before.st_ctime_ns < started - _RACY_NANOSECONDS
        ):
            self._used[path] = packed + digest
            self._changed = True
        return digest

    def save(self) -> None:
        """Write new digests to disk; failing to is not an error."""
        if not self._changed:
            return
        rest = self._old.keys() - self._used.keys()
        kept = dict(self._used)
        if len(rest) <= max(_MAX_UNUSED, len(kept)):
            kept |= {path: self._old[path] for path in rest}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            data = msgspec.msgpack.encode(_SavedDigests(_VERSION, kept))
            write_atomic(self._file, data, sync=False)
        except OSError:
            return
        self._changed = False


def _read_digests(file: Path) -> dict[bytes, bytes]:
    try:
        prepare_type(_SavedDigests)
        saved = msgspec.msgpack.decode(file.read_bytes(), type=_SavedDigests)
    except (OSError, msgspec.DecodeError, ValueError):
        return {}
    return saved.digests if saved.version == _VERSION else {}
