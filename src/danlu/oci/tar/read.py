"""Entries of a tar stream, as untrusting as a stranger's layer deserves.

Understands ustar, pax and GNU long names and big numbers: what image tools write. Everything
that comes is hashed, trailing padding too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from danlu.errors import OutsideError
from danlu.oci.text import printable

__all__ = ["Entry", "LayerError", "Readable", "TarReader"]

_BLOCK = 512
_CHUNK = 1 << 20
#: The most bytes of one extension header: xattr values are at most 64 KiB, names 4 KiB.
_MAX_EXTENSION = 1 << 20
#: Usual are one or two before an entry.
_MAX_EXTENSIONS = 16
_MAX_PATH = 4096
_EMPTY = bytes(_BLOCK)


class LayerError(OutsideError):
    """A layer is no proper tar, or asks for something that no layer may have."""


class Readable(Protocol):
    """Where a stream's bytes come from."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""
        ...


class Entry(msgspec.Struct, frozen=True):
    """One entry: ``kind`` is the type flag, ``mtime`` in nanoseconds; ``attributes`` are xattrs."""

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
    """Iterates over the entries of ``stream``; :meth:`content` gives the bytes of the last one.

    More than ``limit`` bytes raise :class:`LayerError`. ``literal`` is given all that came besides
    the content that was asked for: headers, padding, content nobody read.
    """

    def __init__(
        self,
        stream: Readable,
        *,
        limit: int,
        literal: Callable[[bytes], None] | None = None,
    ) -> None:
        self._stream = stream
        self._limit = limit
        self._hash = hashlib.sha256()
        self._buffer = b""
        self._at = 0
        #: Bytes received so far.
        self.size = 0
        self._left = 0
        self._padding = 0
        self._globals: dict[bytes, bytes] = {}
        self._literal = literal

    def digest(self) -> str:
        """The digest of all bytes received so far."""
        return "sha256:" + self._hash.hexdigest()

    def __iter__(self) -> Iterator[Entry]:
        while (entry := self._next()) is not None:
            yield entry
        self._drain()

    def content(self) -> Iterator[bytes]:
        """The content of the entry given last, in pieces."""
        while self._left:
            piece = self._take(min(self._left, _CHUNK))
            self._left -= len(piece)
            yield piece

    def _fill(self) -> bool:
        self._buffer = self._stream.read(_CHUNK)
        self._at = 0
        self._hash.update(self._buffer)
        self.size += len(self._buffer)
        if self.size > self._limit:
            raise LayerError(f"the layer is bigger than any layer may be, {self._limit} bytes")
        return bool(self._buffer)

    def _take(self, most: int) -> bytes:
        """One to ``most`` bytes."""
        if self._at >= len(self._buffer) and not self._fill():
            raise LayerError("the layer ends early", hint="it was cut off; fetch it again")
        piece = self._buffer[self._at : self._at + most]
        self._at += len(piece)
        return piece

    def _note(self, piece: bytes) -> None:
        if self._literal is not None:
            self._literal(piece)

    def _exactly(self, size: int) -> bytes:
        end = self._at + size
        if end <= len(self._buffer):
            piece = self._buffer[self._at : end]
            self._at = end
        else:
            pieces = []
            while size:
                pieces.append(self._take(size))
                size -= len(pieces[-1])
            piece = b"".join(pieces)
        self._note(piece)
        return piece

    def _skip(self, size: int) -> None:
        while size:
            piece = self._take(min(size, _CHUNK))
            self._note(piece)
            size -= len(piece)

    def _drain(self) -> None:
        self._note(self._buffer[self._at :])
        while self._fill():
            self._note(self._buffer)

    def _next(self) -> Entry | None:
        self._skip(self._left + self._padding)
        self._left = self._padding = 0
        records: dict[bytes, bytes] = {}
        for _ in range(_MAX_EXTENSIONS):
            if self._at >= len(self._buffer) and not self._fill():
                return None
            block = self._exactly(_BLOCK)
            if block == _EMPTY:
                return None
            _verify(block)
            kind = block[156:157]
            if kind not in b"xgLK":
                return self._entry(block, kind, records)
            data = self._extension(_number(block[124:136]))
            if kind == b"g":
                self._globals.update(_parse_pax(data))
                if sum(map(len, self._globals.values())) > _MAX_EXTENSION:
                    raise LayerError("the layer's global headers are bigger than any should be")
            elif kind == b"x":
                records.update(_parse_pax(data))
            else:
                records[b"path" if kind == b"L" else b"linkpath"] = _text(data)
        raise LayerError("the layer has too many extension headers before an entry")

    def _extension(self, size: int) -> bytes:
        if size > _MAX_EXTENSION:
            raise LayerError(f"an extension header of the layer has {size} bytes")
        data = self._exactly(size)
        self._skip(-size % _BLOCK)
        return data

    def _entry(self, block: bytes, kind: bytes, local: dict[bytes, bytes]) -> Entry:
        records = {**self._globals, **local} if self._globals else local
        name = records.get(b"path")
        link = records.get(b"linkpath")
        if any(key.startswith(b"GNU.sparse.") for key in records):
            raise LayerError("the layer holds a sparse file, which image layers cannot have")
        entry = Entry(
            name=_name(block) if name is None else _checked(name),
            kind=kind,
            mode=_number(block[100:108]) & 0o7777,
            uid=_whole(records, b"uid", block[108:116]),
            gid=_whole(records, b"gid", block[116:124]),
            size=_whole(records, b"size", block[124:136]),
            mtime=_time(records, block[136:148]),
            link=_text(block[157:257]) if link is None else _checked(link),
            attributes=_xattrs(records) if records else {},
        )
        if entry.kind in b"\x0007":
            self._left = entry.size
            self._padding = -entry.size % _BLOCK
        elif entry.kind not in b"123456":
            raise LayerError(f"the layer holds an entry of unknown kind {kind!r}")
        return entry


def _verify(block: bytes) -> None:
    """Check the header's sum, in which its own field counts as spaces."""
    wanted = _number(block[148:156])
    if sum(block) - sum(block[148:156]) + 8 * 0x20 != wanted:
        raise LayerError("the layer is damaged: a header has a wrong check sum")


def _number(field: bytes) -> int:
    """An octal number, or GNU's base-256 where the first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big")
        bits = 8 * len(field)
        # Negative numbers fill the field; others have only the marking bit.
        return value - (1 << bits) if field[0] == 0xFF else value - (1 << (bits - 1))
    text = field.strip(b" \0")
    if not text:
        return 0
    try:
        # `int` would accept signs, underscores and spaces.
        if not text.isdigit():
            raise ValueError(text)
        return int(text, 8)
    except ValueError:
        raise LayerError(f"the layer is damaged: {field!r} is no number") from None


def _whole(records: Mapping[bytes, bytes], key: bytes, field: bytes) -> int:
    text = records.get(key)
    if text is None:
        value = _number(field)
    elif text.isdigit() and len(text) < 20:
        value = int(text)
    else:
        raise LayerError(f"the layer is damaged: {key.decode()} is {text[:40]!r}")
    if not 0 <= value < 1 << 63:
        raise LayerError(f"the layer is damaged: {key.decode()} is {value}")
    return value


def _time(records: Mapping[bytes, bytes], field: bytes) -> int:
    """Nanoseconds since 1970."""
    text = records.get(b"mtime")
    if text is None:
        return _number(field) * 1_000_000_000
    negative = text.startswith(b"-")
    seconds, _, fraction = text.removeprefix(b"-").partition(b".")
    if not (seconds + fraction).isdigit() or len(text) > 40:
        raise LayerError(f"the layer is damaged: a time is {text[:40]!r}")
    value = int(seconds or b"0") * 1_000_000_000 + int(fraction[:9].ljust(9, b"0"))
    return -value if negative else value


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _name(block: bytes) -> bytes:
    name = _text(block[:100])
    # GNU's old format has times where ustar has the prefix.
    if block[257:263] == b"ustar\0" and block[345]:
        return _text(block[345:500]) + b"/" + name
    return name


def _checked(name: bytes) -> bytes:
    if b"\0" in name or len(name) > _MAX_PATH:
        raise LayerError(f"the layer holds a name that no file can have: {printable(name[:80])!r}")
    return name


def _parse_pax(data: bytes) -> dict[bytes, bytes]:
    records = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 12)
        length = data[at:space] if space > 0 else b""
        if not length.isdigit():
            raise LayerError("the layer is damaged: an extension header has no length")
        end = at + int(length)
        if end <= space + 1 or end > len(data) or data[end - 1 : end] != b"\n":
            raise LayerError("the layer is damaged: an extension header has a wrong length")
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not equals:
            raise LayerError("the layer is damaged: an extension header has no value")
        records[key] = value
        at = end
    return records


def _xattrs(records: Mapping[bytes, bytes]) -> dict[str, bytes]:
    prefix = b"SCHILY.xattr."
    return {
        os.fsdecode(key[len(prefix) :]): value
        for key, value in records.items()
        if key.startswith(prefix)
    }
