"""Write a tree in overlayfs's form as a deterministic OCI layer.

Headers are ustar, with a pax header in front if a value does not fit (POSIX.1-2001, pax, "ustar
Interchange Format" and "pax Header Block"). Every header is a function of the entry alone; user and
group names are left empty.
"""

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
    is_layer_xattr,
    is_whiteout,
)
from danlu.oci.tar.layer_paths import LayerSummary
from danlu.oci.tar.read import TypeFlag
from danlu.util.disk_full import is_disk_full
from danlu.util.sanitize import escape_unprintable

_CHUNK_SIZE = 1 << 20
#: Small chunks are collected up to this size before they are hashed and written.
_BUFFER_SIZE = 1 << 18

_NO_XATTRS: Mapping[str, bytes] = {}

BLOCK_SIZE = 512

#: Two empty blocks mark the end of an archive.
END_OF_ARCHIVE = bytes(2 * BLOCK_SIZE)

# Fields of a ustar header: bytes of names, then seven and eleven octal digits (POSIX, pax).
_MAX_NAME = 100
_MAX_PREFIX = 155
_MAX_ID = 0o7777777
_MAX_LONG = 0o77777777777

_NUMBERS = b"%07o\0%07o\0%07o\0%011o\0%011o\0"
_MAGIC = b"ustar\x0000" + bytes(64) + b"0000000\x000000000\x00"
_ZEROS = bytes(BLOCK_SIZE)
# The checksum counts its own field as eight spaces.
_FIXED_SUM = sum(_MAGIC) + 8 * 0x20


class NormalizeOptions(msgspec.Struct, frozen=True):
    """Which metadata is replaced: times in seconds since 1970, numeric owners.

    ``clamp`` is the newest modification time that is kept. ``mtime``, ``uid`` and ``gid`` apply to
    every entry.
    """

    clamp: int | None = None
    mtime: int | None = None
    uid: int | None = None
    gid: int | None = None


def write_layer(
    root: Path,
    write: Callable[[bytes], object] | None,
    *,
    normalise: NormalizeOptions = NormalizeOptions(),
) -> LayerSummary:
    """Write the tree ``root`` as a tar; the same tree gives the same bytes on every machine.

    ``write`` receives the stream in chunks; with None, only the digest is computed. Entries are
    sorted by the components of their paths, with a directory before its contents. Sub-second times
    are cut; sockets and ``root`` itself are left out. A second path to an inode becomes a hard
    link; a link count alone means nothing, because trees share inodes with caches.

    Raises :class:`UsageError` for what a layer cannot contain (devices, names that begin with
    ``.wh.``) and :class:`StoreError` if the tree changes while it is read.
    """
    writer = _LayerWriter(write, normalise)
    try:
        writer.write_tree(os.fsencode(root))
    except OSError as error:
        # Reading does not fill a disk: this is about where the tar is written to.
        if is_disk_full(error):
            raise
        raise StoreError(f"cannot read the layer at {root}: {error}") from error
    return writer.finish()


def _walk_tree(root: bytes) -> Iterator[tuple[bytes, bytes, os.stat_result]]:
    """Yield path, name in the tar and lstat(2) result of each entry below ``root``."""
    cut = len(root) + 1

    def children(directory: bytes) -> list[os.DirEntry[bytes]]:
        with os.scandir(directory) as entries:
            # Reversed, because the last one is taken next. The order is part of the layer's digest.
            return sorted(entries, key=_entry_name, reverse=True)

    pending = children(root)
    while pending:
        entry = pending.pop()
        status = entry.stat(follow_symlinks=False)
        yield entry.path, entry.path[cut:], status
        if stat.S_ISDIR(status.st_mode):
            pending += children(entry.path)


def _entry_name(entry: os.DirEntry[bytes]) -> bytes:
    return entry.name


class _LayerWriter:
    def __init__(
        self, write: Callable[[bytes], object] | None, normalise: NormalizeOptions
    ) -> None:
        self._write = write
        self._normalise = normalise
        self._hash = hashlib.sha256()
        self._pieces: list[bytes] = []
        self._gathered = 0
        self._size = 0
        self._files = 0
        self._inodes: dict[tuple[int, int], bytes] = {}

    def write_tree(self, root: bytes) -> None:
        root = root.rstrip(b"/") or b"/."
        if _read_xattrs(root).get(OPAQUE_XATTR) == b"y":
            self._write_whiteout(OPAQUE_NAME)
        for path, name, status in _walk_tree(root):
            directory, slash, base = name.rpartition(b"/")
            if base.startswith(WHITEOUT_PREFIX):
                raise UsageError(
                    f"/{escape_unprintable(name)} cannot be part of an image",
                    hint="names that begin with '.wh.' mean deletions in image layers",
                )
            kind = stat.S_IFMT(status.st_mode)
            if is_whiteout(path, status):
                self._write_whiteout(directory + slash + WHITEOUT_PREFIX + base)
            elif kind == stat.S_IFREG:
                self._write_file(path, name, status)
            elif kind == stat.S_IFDIR:
                self._write_directory(path, name, status)
            elif kind == stat.S_IFLNK:
                if not self._write_hard_link(name, status):
                    self._write_entry(name, TypeFlag.SYMLINK, status, link=os.readlink(path))
            elif kind == stat.S_IFIFO:
                if not self._write_hard_link(name, status):
                    self._write_entry(name, TypeFlag.FIFO, status)
            elif kind != stat.S_IFSOCK:
                raise UsageError(
                    f"/{escape_unprintable(name)} is a device, which an image cannot contain",
                    hint="devices belong to the machine that runs the environment: remove it",
                )

    def _write_directory(self, path: bytes, name: bytes, status: os.stat_result) -> None:
        attributes = _read_xattrs(path)
        self._write_entry(name + b"/", TypeFlag.DIRECTORY, status, attributes=attributes)
        if attributes.get(OPAQUE_XATTR) == b"y":
            self._write_whiteout(name + b"/" + OPAQUE_NAME)

    def _write_file(self, path: bytes, name: bytes, status: os.stat_result) -> None:
        if status.st_nlink > 1 and self._write_hard_link(name, status):
            return
        size = status.st_size
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._write_entry(
                name, TypeFlag.REGULAR, status, size=size, attributes=_read_xattrs(descriptor)
            )
            remaining = size
            # Exactly as many bytes as the header says, even if the file has grown.
            while remaining:
                piece = os.read(descriptor, min(remaining, _CHUNK_SIZE))
                if not piece:
                    raise StoreError(f"/{escape_unprintable(name)} shrank while it was read")
                self._emit_bytes(piece)
                remaining -= len(piece)
        finally:
            os.close(descriptor)
        if size % 512:
            self._emit_bytes(block_padding(size))

    def _write_hard_link(self, name: bytes, status: os.stat_result) -> bool:
        """Write a hard link if this inode has been written already; else record it."""
        if status.st_nlink < 2:
            return False
        first = self._inodes.setdefault((status.st_dev, status.st_ino), name)
        if first is name:
            return False
        self._write_entry(name, TypeFlag.HARD_LINK, status, link=first)
        return True

    def _write_whiteout(self, name: bytes) -> None:
        """Write a whiteout: an empty file. overlayfs's own one has a time, which means nothing."""
        self._files += 1
        self._emit_bytes(encode_header(name, TypeFlag.REGULAR, mode=0o600))

    def _write_entry(
        self,
        name: bytes,
        kind: bytes,
        status: os.stat_result,
        *,
        size: int = 0,
        link: bytes = b"",
        attributes: Mapping[str, bytes] = _NO_XATTRS,
    ) -> None:
        self._files += 1
        normalise = self._normalise
        self._emit_bytes(
            encode_header(
                name,
                kind,
                mode=status.st_mode & 0o7777,
                uid=status.st_uid if normalise.uid is None else normalise.uid,
                gid=status.st_gid if normalise.gid is None else normalise.gid,
                size=size,
                mtime=self._normalized_mtime(status),
                link=link,
                attributes=_pax_records(attributes) if attributes else None,
            )
        )

    def _normalized_mtime(self, status: os.stat_result) -> int:
        normalise = self._normalise
        if normalise.mtime is not None:
            return normalise.mtime
        seconds = status.st_mtime_ns // 1_000_000_000
        return seconds if normalise.clamp is None else min(seconds, normalise.clamp)

    def _emit_bytes(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._gathered += len(piece)
        if self._gathered >= _BUFFER_SIZE:
            self._flush_buffer()

    def _flush_buffer(self) -> None:
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size += self._gathered
        self._gathered = 0
        self._hash.update(data)
        if self._write is not None:
            self._write(data)

    def finish(self) -> LayerSummary:
        self._emit_bytes(END_OF_ARCHIVE)
        self._flush_buffer()
        diff_id = DiffId("sha256:" + self._hash.hexdigest())
        return LayerSummary(diff_id=diff_id, size=self._size, files=self._files)


def _read_xattrs(place: bytes | int) -> Mapping[str, bytes]:
    """Return the extended attributes of a file or directory, including overlayfs's own."""
    names = os.listxattr(place)
    return {name: os.getxattr(place, name) for name in names} if names else _NO_XATTRS


def _pax_records(attributes: Mapping[str, bytes]) -> dict[bytes, bytes] | None:
    """Return the pax records of those attributes that are content."""
    records = {
        b"SCHILY.xattr." + os.fsencode(name): value
        for name, value in attributes.items()
        if is_layer_xattr(name)
    }
    return records or None


def block_padding(size: int) -> bytes:
    """Return the zeros that fill ``size`` bytes of content up to a whole block."""
    return _ZEROS[: -size % BLOCK_SIZE]


def encode_header(
    name: bytes,
    kind: bytes,
    *,
    mode: int,
    uid: int = 0,
    gid: int = 0,
    size: int = 0,
    mtime: int = 0,
    link: bytes = b"",
    attributes: Mapping[bytes, bytes] | None = None,
) -> bytes:
    """Return the header blocks of one entry.

    ``kind`` is the type flag, ``mtime`` is in seconds, ``link`` is a link's target; ``attributes``
    are additional pax records (``SCHILY.xattr.NAME``).
    """
    if (
        attributes is None
        and len(name) <= _MAX_NAME
        and len(link) <= _MAX_NAME
        and name.isascii()
        and link.isascii()
        and uid <= _MAX_ID
        and gid <= _MAX_ID
        and size <= _MAX_LONG
        and 0 <= mtime <= _MAX_LONG
    ):
        return _encode_ustar(name, kind, _NUMBERS % (mode, uid, gid, size, mtime), link, b"")
    return _encode_with_pax(name, kind, mode, uid, gid, size, mtime, link, attributes or {})


def _encode_ustar(name: bytes, kind: bytes, numbers: bytes, link: bytes, prefix: bytes) -> bytes:
    total = sum(name) + sum(numbers) + sum(link) + sum(prefix) + kind[0] + _FIXED_SUM
    return b"%b%b%06o\0 %b%b%b%b%b" % (
        name.ljust(_MAX_NAME, b"\0"),
        numbers,
        total,
        kind,
        link.ljust(_MAX_NAME, b"\0"),
        _MAGIC,
        prefix.ljust(_MAX_PREFIX, b"\0"),
        _ZEROS[:12],
    )


def _encode_with_pax(
    name: bytes,
    kind: bytes,
    mode: int,
    uid: int,
    gid: int,
    size: int,
    mtime: int,
    link: bytes,
    attributes: Mapping[bytes, bytes],
) -> bytes:
    records = dict(attributes)
    short, prefix = _split_ustar_name(name)
    if not short:
        records[b"path"] = name
        short = _ascii_fallback(name)
    if len(link) > _MAX_NAME or not link.isascii():
        records[b"linkpath"] = link
        link = _ascii_fallback(link)
    numbers = [mode]
    for key, value, most in (
        (b"uid", uid, _MAX_ID),
        (b"gid", gid, _MAX_ID),
        (b"size", size, _MAX_LONG),
        (b"mtime", mtime, _MAX_LONG),
    ):
        if not 0 <= value <= most:
            records[key] = b"%d" % value
            value = 0
        numbers.append(value)
    block = _encode_ustar(short, kind, _NUMBERS % tuple(numbers), link, prefix)
    return _encode_pax_header(records) + block if records else block


def _split_ustar_name(name: bytes) -> tuple[bytes, bytes]:
    """Split a name into a ustar header's name and prefix, both empty if it does not fit."""
    if not name.isascii():
        return b"", b""
    if len(name) <= _MAX_NAME:
        return name, b""
    # A directory's trailing slash is part of its name.
    cut = name.rfind(b"/", 0, min(_MAX_PREFIX + 1, len(name) - 1))
    if cut <= 0 or len(name) - cut - 1 > _MAX_NAME:
        return b"", b""
    return name[cut + 1 :], name[:cut]


def _ascii_fallback(text: bytes) -> bytes:
    """Return what readers without pax support see; it must not gain a trailing slash."""
    return bytes(byte if byte < 0x80 else 0x3F for byte in text[:_MAX_NAME]).rstrip(b"/")


def _encode_pax_header(records: Mapping[bytes, bytes]) -> bytes:
    data = b"".join(_encode_pax_record(key, value) for key, value in sorted(records.items()))
    numbers = _NUMBERS % (0o644, 0, 0, len(data), 0)
    return _encode_ustar(b"PaxHeaders.0", b"x", numbers, b"", b"") + data + block_padding(len(data))


def _encode_pax_record(key: bytes, value: bytes) -> bytes:
    r"""Return ``LENGTH KEY=VALUE\n``, where the length counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) > len(str(rest)):
        length = rest + len(str(length))
    return b"%d %b=%b\n" % (length, key, value)
