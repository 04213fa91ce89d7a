"""Read the entries of an untrusted tar stream.

Supports what image tools write: ustar, pax, and GNU long names and base-256 numbers. Every byte is
hashed, including trailing padding, unless nobody wants the digest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from danlu.errors import OutsideError
from danlu.util.sanitize import escape_unprintable

_BLOCK_SIZE = 512
_CHUNK_SIZE = 1 << 20
#: Maximum size of an extension header: xattr values are at most 64 KiB, names 4 KiB.
_MAX_EXTENSION_SIZE = 1 << 20
#: Maximum number of extension headers before an entry; one or two are usual.
_MAX_EXTENSIONS = 16
# PATH_MAX: Linux opens no longer path.
_MAX_PATH = 4096
_EMPTY_BLOCK = bytes(_BLOCK_SIZE)


class TypeFlag:
    """Type flags of tar entries (POSIX.1-2001, pax, "ustar Interchange Format")."""

    OLD_REGULAR = b"\0"
    REGULAR = b"0"
    HARD_LINK = b"1"
    SYMLINK = b"2"
    DIRECTORY = b"5"
    FIFO = b"6"
    CONTIGUOUS = b"7"


class LayerError(OutsideError):
    """A layer is not a valid tar, or contains something that no layer may contain."""


class Readable(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; empty at the end."""
        ...


class TarEntry(msgspec.Struct, frozen=True):
    """One entry; ``kind`` is the type flag, ``mtime`` in nanoseconds, ``attributes`` are xattrs."""

    name: bytes
    kind: bytes
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    link: bytes
    attributes: Mapping[str, bytes]


class TarReader:
    """Iterate over the entries of ``stream``; :meth:`content` returns the bytes of the last one.

    More than ``limit`` bytes raise :class:`LayerError`. ``literal`` receives everything except the
    content that was read through :meth:`content`: headers, padding, skipped content. Without
    ``hashed`` there is no :meth:`digest`.
    """

    def __init__(
        self,
        stream: Readable,
        *,
        limit: int,
        literal: Callable[[bytes], None] | None = None,
        hashed: bool = True,
    ) -> None:
        self._stream = stream
        self._limit = limit
        self._hash = hashlib.sha256() if hashed else None
        self._buffer = b""
        self._position = 0
        #: Bytes received so far.
        self.size = 0
        self._content_left = 0
        self._padding = 0
        self._globals: dict[bytes, bytes] = {}
        self._literal = literal

    def digest(self) -> str:
        """Return the digest of all bytes received so far."""
        assert self._hash is not None
        return "sha256:" + self._hash.hexdigest()

    def __iter__(self) -> Iterator[TarEntry]:
        while (entry := self._next_entry()) is not None:
            yield entry
        self._read_to_end()

    def content(self) -> Iterator[bytes]:
        """Yield the content of the last entry in chunks."""
        while self._content_left:
            piece = self._read_some(min(self._content_left, _CHUNK_SIZE))
            self._content_left -= len(piece)
            yield piece

    def _fill_buffer(self) -> bool:
        self._buffer = self._stream.read(_CHUNK_SIZE)
        self._position = 0
        if self._hash is not None:
            self._hash.update(self._buffer)
        self.size += len(self._buffer)
        # Checked for every byte received, so that endless padding is limited too.
        if self.size > self._limit:
            raise LayerError(f"the layer exceeds the limit of {self._limit} bytes")
        return bool(self._buffer)

    def _read_some(self, most: int) -> bytes:
        """Return between one and ``most`` bytes."""
        if self._position >= len(self._buffer) and not self._fill_buffer():
            raise LayerError("the layer is truncated", hint="fetch it again")
        piece = self._buffer[self._position : self._position + most]
        self._position += len(piece)
        return piece

    def _record_literal(self, piece: bytes) -> None:
        if self._literal is not None:
            self._literal(piece)

    def _read_exactly(self, size: int) -> bytes:
        end = self._position + size
        if end <= len(self._buffer):
            piece = self._buffer[self._position : end]
            self._position = end
        else:
            pieces = []
            while size:
                pieces.append(self._read_some(size))
                size -= len(pieces[-1])
            piece = b"".join(pieces)
        self._record_literal(piece)
        return piece

    def _skip_bytes(self, size: int) -> None:
        while size:
            piece = self._read_some(min(size, _CHUNK_SIZE))
            self._record_literal(piece)
            size -= len(piece)

    def _read_to_end(self) -> None:
        self._record_literal(self._buffer[self._position :])
        while self._fill_buffer():
            self._record_literal(self._buffer)

    def _next_entry(self) -> TarEntry | None:
        self._skip_bytes(self._content_left + self._padding)
        self._content_left = self._padding = 0
        records: dict[bytes, bytes] = {}
        for _ in range(_MAX_EXTENSIONS):
            if self._position >= len(self._buffer) and not self._fill_buffer():
                return None
            block = self._read_exactly(_BLOCK_SIZE)
            if block == _EMPTY_BLOCK:
                return None
            _verify_checksum(block)
            kind = block[156:157]
            if kind not in b"xgLK":
                return self._parse_entry(block, kind, records)
            data = self._read_extension(_parse_number(block[124:136]))
            if kind == b"g":
                # Global headers apply to all later entries and add up, so their total is limited.
                self._globals.update(_parse_pax(data))
                if sum(map(len, self._globals.values())) > _MAX_EXTENSION_SIZE:
                    raise LayerError("the layer's global extension headers are too large")
            elif kind == b"x":
                records.update(_parse_pax(data))
            else:
                records[b"path" if kind == b"L" else b"linkpath"] = _until_nul(data)
        raise LayerError("the layer has too many extension headers before an entry")

    def _read_extension(self, size: int) -> bytes:
        # It is read into memory as a whole, and the size is what the archive says.
        if size > _MAX_EXTENSION_SIZE:
            raise LayerError(f"the layer has an extension header of {size} bytes")
        data = self._read_exactly(size)
        self._skip_bytes(-size % _BLOCK_SIZE)
        return data

    def _parse_entry(self, block: bytes, kind: bytes, local: dict[bytes, bytes]) -> TarEntry:
        records = {**self._globals, **local} if self._globals else local
        name = records.get(b"path")
        link = records.get(b"linkpath")
        if any(key.startswith(b"GNU.sparse.") for key in records):
            raise LayerError("the layer contains a sparse file, which is not supported")
        entry = TarEntry(
            name=_parse_name(block) if name is None else _check_path(name),
            kind=kind,
            mode=_parse_number(block[100:108]) & 0o7777,
            uid=_parse_unsigned_int(records, b"uid", block[108:116]),
            gid=_parse_unsigned_int(records, b"gid", block[116:124]),
            size=_parse_unsigned_int(records, b"size", block[124:136]),
            mtime=_parse_mtime(records, block[136:148]),
            link=_until_nul(block[157:257]) if link is None else _check_path(link),
            attributes=_parse_xattrs(records) if records else {},
        )
        if entry.kind in b"\x0007":
            self._content_left = entry.size
            self._padding = -entry.size % _BLOCK_SIZE
        elif entry.kind not in b"123456":
            raise LayerError(f"the layer contains an entry of unknown type {kind!r}")
        return entry


def _verify_checksum(block: bytes) -> None:
    """Verify the header's checksum, which counts its own field as spaces."""
    expected = _parse_number(block[148:156])
    if sum(block) - sum(block[148:156]) + 8 * 0x20 != expected:
        raise LayerError("the layer is damaged: a header has a wrong checksum")


def _parse_number(field: bytes) -> int:
    """Parse an octal number, or GNU's base-256 if the first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big")
        bits = 8 * len(field)
        # Negative numbers are sign-extended; others only have the marker bit set.
        return value - (1 << bits) if field[0] == 0xFF else value - (1 << (bits - 1))
    text = field.strip(b" \0")
    if not text:
        return 0
    try:
        # `int` would also accept signs, underscores and spaces.
        if not text.isdigit():
            raise ValueError(text)
        return int(text, 8)
    except ValueError:
        raise LayerError(f"the layer is damaged: invalid number {field!r}") from None


def _parse_unsigned_int(records: Mapping[bytes, bytes], key: bytes, field: bytes) -> int:
    text = records.get(key)
    if text is None:
        value = _parse_number(field)
    # Limited because int() takes quadratic time for long digit strings.
    elif text.isdigit() and len(text) < 20:
        value = int(text)
    else:
        raise LayerError(f"the layer is damaged: invalid {key.decode()} {text[:40]!r}")
    if not 0 <= value < 1 << 63:
        raise LayerError(f"the layer is damaged: invalid {key.decode()} {value}")
    return value


def _parse_mtime(records: Mapping[bytes, bytes], field: bytes) -> int:
    """Return the modification time in nanoseconds since 1970."""
    text = records.get(b"mtime")
    if text is None:
        return _parse_number(field) * 1_000_000_000
    negative = text.startswith(b"-")
    seconds, _, fraction = text.removeprefix(b"-").partition(b".")
    if not (seconds + fraction).isdigit() or len(text) > 40:
        raise LayerError(f"the layer is damaged: invalid time {text[:40]!r}")
    value = int(seconds or b"0") * 1_000_000_000 + int(fraction[:9].ljust(9, b"0"))
    return -value if negative else value


def _until_nul(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _parse_name(block: bytes) -> bytes:
    name = _until_nul(block[:100])
    # GNU's old format (magic "ustar  ") has times where ustar has the prefix.
    if block[257:263] == b"ustar\0" and block[345]:
        return _until_nul(block[345:500]) + b"/" + name
    return name


def _check_path(name: bytes) -> bytes:
    if b"\0" in name or len(name) > _MAX_PATH:
        raise LayerError(
            f"the layer contains an invalid file name: {escape_unprintable(name[:80])!r}"
        )
    return name


def _parse_pax(data: bytes) -> dict[bytes, bytes]:
    records = {}
    position = 0
    while position < len(data):
        space = data.find(b" ", position, position + 12)
        length = data[position:space] if space > 0 else b""
        if not length.isdigit():
            raise LayerError("the layer is damaged: an extension header has no length")
        end = position + int(length)
        if end <= space + 1 or end > len(data) or data[end - 1 : end] != b"\n":
            raise LayerError("the layer is damaged: an extension header has an invalid length")
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not equals:
            raise LayerError("the layer is damaged: an extension header has no value")
        records[key] = value
        position = end
    return records


def _parse_xattrs(records: Mapping[bytes, bytes]) -> dict[str, bytes]:
    prefix = b"SCHILY.xattr."
    return {
        os.fsdecode(key[len(prefix) :]): value
        for key, value in records.items()
        if key.startswith(prefix)
    }
