"""A tree in overlayfs's form, written as a deterministic OCI layer."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from danlu.errors import StoreError, UsageError
from danlu.oci.digest import DiffId
from danlu.oci.overlay import (
    OPAQUE_NAME,
    OPAQUE_XATTR,
    WHITEOUT_PREFIX,
    is_whiteout,
    travels,
)
from danlu.oci.tar.header import END, header, padding
from danlu.oci.tar.summary import LayerSummary
from danlu.oci.text import printable
from danlu.util.space import is_full

__all__ = ["Normalise", "write_layer"]

_CHUNK = 1 << 20
#: Small pieces are gathered up to this size before they are hashed and written.
_GATHER = 1 << 18

_NOTHING: Mapping[str, bytes] = {}


class Normalise(msgspec.Struct, frozen=True):
    """What of the files' metadata is replaced: times in seconds since 1970, numeric owners.

    ``clamp`` is the newest modification time that is kept as it is; ``mtime``, ``uid`` and
    ``gid`` hold for every entry.
    """

    clamp: int | None = None
    mtime: int | None = None
    uid: int | None = None
    gid: int | None = None


def write_layer(
    root: Path,
    write: Callable[[bytes], object] | None,
    *,
    normalise: Normalise = Normalise(),
) -> LayerSummary:
    """Write the tree ``root`` as a tar, the same bytes for the same tree on every machine.

    ``write`` takes the stream piece by piece; ``None`` computes the digest only. Entries come in
    the order of their path's components, a directory before what it holds. Sub-second times are
    cut, sockets are left out, and so is ``root`` itself. A second path to an inode becomes a hard
    link; a link count alone means nothing, for trees share inodes with caches.

    Raises :class:`UsageError` for what a layer cannot hold (devices, names that begin with
    ``.wh.``) and :class:`StoreError` where the tree changes while it is read.
    """
    writer = _Writer(write, normalise)
    try:
        writer.tree(os.fsencode(root))
    except OSError as error:
        # Reading takes no room: this is where the tar goes to.
        if is_full(error):
            raise
        raise StoreError(f"cannot read the layer at {root}: {error}") from error
    return writer.finish()


def _walk(root: bytes) -> Iterator[tuple[bytes, bytes, os.stat_result]]:
    """Each entry below ``root``: its path, its name in the tar, its status."""
    cut = len(root) + 1

    def children(directory: bytes) -> list[os.DirEntry[bytes]]:
        with os.scandir(directory) as entries:
            return sorted(entries, key=_name, reverse=True)

    pending = children(root)
    while pending:
        entry = pending.pop()
        status = entry.stat(follow_symlinks=False)
        yield entry.path, entry.path[cut:], status
        if stat.S_ISDIR(status.st_mode):
            pending += children(entry.path)


def _name(entry: os.DirEntry[bytes]) -> bytes:
    return entry.name


class _Writer:
    def __init__(self, write: Callable[[bytes], object] | None, normalise: Normalise) -> None:
        self._write = write
        self._normalise = normalise
        self._hash = hashlib.sha256()
        self._pieces: list[bytes] = []
        self._gathered = 0
        self._size = 0
        self._files = 0
        self._inodes: dict[tuple[int, int], bytes] = {}

    def tree(self, root: bytes) -> None:
        root = root.rstrip(b"/") or b"/."
        if _attributes(root).get(OPAQUE_XATTR) == b"y":
            self._bare(OPAQUE_NAME)
        for path, name, status in _walk(root):
            directory, slash, base = name.rpartition(b"/")
            if base.startswith(WHITEOUT_PREFIX):
                raise UsageError(
                    f"/{printable(name)} cannot be part of an image",
                    hint="names that begin with '.wh.' mean deletions in image layers",
                )
            kind = stat.S_IFMT(status.st_mode)
            if is_whiteout(path, status):
                self._bare(directory + slash + WHITEOUT_PREFIX + base)
            elif kind == stat.S_IFREG:
                self._file(path, name, status)
            elif kind == stat.S_IFDIR:
                self._directory(path, name, status)
            elif kind == stat.S_IFLNK:
                if not self._linked(name, status):
                    self._entry(name, b"2", status, link=os.readlink(path))
            elif kind == stat.S_IFIFO:
                if not self._linked(name, status):
                    self._entry(name, b"6", status)
            elif kind != stat.S_IFSOCK:
                raise UsageError(
                    f"/{printable(name)} is a device and cannot be part of an image",
                    hint="devices belong to the machine an environment runs on; remove it again",
                )

    def _directory(self, path: bytes, name: bytes, status: os.stat_result) -> None:
        attributes = _attributes(path)
        self._entry(name + b"/", b"5", status, attributes=attributes)
        if attributes.get(OPAQUE_XATTR) == b"y":
            self._bare(name + b"/" + OPAQUE_NAME)

    def _file(self, path: bytes, name: bytes, status: os.stat_result) -> None:
        if status.st_nlink > 1 and self._linked(name, status):
            return
        size = status.st_size
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._entry(name, b"0", status, size=size, attributes=_attributes(descriptor))
            left = size
            while left:
                piece = os.read(descriptor, min(left, _CHUNK))
                if not piece:
                    raise StoreError(f"/{printable(name)} became shorter while it was read")
                self._emit(piece)
                left -= len(piece)
        finally:
            os.close(descriptor)
        if size % 512:
            self._emit(padding(size))

    def _linked(self, name: bytes, status: os.stat_result) -> bool:
        """Write a hard link if this inode has been written; remember it otherwise."""
        if status.st_nlink < 2:
            return False
        first = self._inodes.setdefault((status.st_dev, status.st_ino), name)
        if first is name:
            return False
        self._entry(name, b"1", status, link=first)
        return True

    def _bare(self, name: bytes) -> None:
        """An empty file that means a deletion. overlayfs's own has a time that means nothing."""
        self._files += 1
        self._emit(header(name, b"0", mode=0o600))

    def _entry(
        self,
        name: bytes,
        kind: bytes,
        status: os.stat_result,
        *,
        size: int = 0,
        link: bytes = b"",
        attributes: Mapping[str, bytes] = _NOTHING,
    ) -> None:
        self._files += 1
        normalise = self._normalise
        self._emit(
            header(
                name,
                kind,
                mode=status.st_mode & 0o7777,
                uid=status.st_uid if normalise.uid is None else normalise.uid,
                gid=status.st_gid if normalise.gid is None else normalise.gid,
                size=size,
                mtime=self._mtime(status),
                link=link,
                attributes=_records(attributes) if attributes else None,
            )
        )

    def _mtime(self, status: os.stat_result) -> int:
        normalise = self._normalise
        if normalise.mtime is not None:
            return normalise.mtime
        seconds = status.st_mtime_ns // 1_000_000_000
        return seconds if normalise.clamp is None else min(seconds, normalise.clamp)

    def _emit(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._gathered += len(piece)
        if self._gathered >= _GATHER:
            self._flush()

    def _flush(self) -> None:
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size += self._gathered
        self._gathered = 0
        self._hash.update(data)
        if self._write is not None:
            self._write(data)

    def finish(self) -> LayerSummary:
        self._emit(END)
        self._flush()
        diff_id = DiffId("sha256:" + self._hash.hexdigest())
        return LayerSummary(diff_id=diff_id, size=self._size, files=self._files)


def _attributes(place: bytes | int) -> Mapping[str, bytes]:
    """The extended attributes of a file or directory, overlayfs's own too."""
    names = os.listxattr(place)
    return {name: os.getxattr(place, name) for name in names} if names else _NOTHING


def _records(attributes: Mapping[str, bytes]) -> dict[bytes, bytes] | None:
    """The pax records of those attributes that are content."""
    records = {
        b"SCHILY.xattr." + os.fsencode(name): value
        for name, value in attributes.items()
        if travels(name)
    }
    return records or None
