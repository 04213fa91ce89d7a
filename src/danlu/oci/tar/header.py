"""Bytes of tar headers: ustar where it suffices, with a pax header before it where it does not.

POSIX.1-2001, pax, "ustar Interchange Format" and "pax Header Block". Every header is a function
of the arguments alone; user and group names are left empty.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BLOCK", "END", "header", "padding"]

BLOCK = 512

#: Two empty blocks end an archive.
END = bytes(2 * BLOCK)

_MAX_NAME = 100
_MAX_PREFIX = 155
_MAX_ID = 0o7777777
_MAX_LONG = 0o77777777777

_NUMBERS = b"%07o\0%07o\0%07o\0%011o\0%011o\0"
_MAGIC = b"ustar\x0000" + bytes(64) + b"0000000\x000000000\x00"
_ZEROS = bytes(BLOCK)
# The check sum counts its own field as eight spaces.
_FIXED_SUM = sum(_MAGIC) + 8 * 0x20


def padding(size: int) -> bytes:
    """The zeros that fill ``size`` bytes of content up to a whole block."""
    return _ZEROS[: -size % BLOCK]


def header(
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
    """The header blocks of one entry.

    ``kind`` is the type flag, ``mtime`` in seconds, ``link`` the target of a link;
    ``attributes`` are further pax records (``SCHILY.xattr.NAME``).
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
        return _ustar(name, kind, _NUMBERS % (mode, uid, gid, size, mtime), link, b"")
    return _with_pax(name, kind, mode, uid, gid, size, mtime, link, attributes or {})


def _ustar(name: bytes, kind: bytes, numbers: bytes, link: bytes, prefix: bytes) -> bytes:
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


def _with_pax(
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
    short, prefix = _split(name)
    if not short:
        records[b"path"] = name
        short = _ascii(name)
    if len(link) > _MAX_NAME or not link.isascii():
        records[b"linkpath"] = link
        link = _ascii(link)
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
    block = _ustar(short, kind, _NUMBERS % tuple(numbers), link, prefix)
    return _pax(records) + block if records else block


def _split(name: bytes) -> tuple[bytes, bytes]:
    """``name`` as the name and prefix of a ustar header; an empty name where it does not fit."""
    if not name.isascii():
        return b"", b""
    if len(name) <= _MAX_NAME:
        return name, b""
    # A directory's closing slash is part of its name.
    cut = name.rfind(b"/", 0, min(_MAX_PREFIX + 1, len(name) - 1))
    if cut <= 0 or len(name) - cut - 1 > _MAX_NAME:
        return b"", b""
    return name[cut + 1 :], name[:cut]


def _ascii(text: bytes) -> bytes:
    """What readers that know no pax see; it must not end in a slash that the truth lacks."""
    return bytes(one if one < 0x80 else 0x3F for one in text[:_MAX_NAME]).rstrip(b"/")


def _pax(records: Mapping[bytes, bytes]) -> bytes:
    data = b"".join(_record(key, value) for key, value in sorted(records.items()))
    numbers = _NUMBERS % (0o644, 0, 0, len(data), 0)
    return _ustar(b"PaxHeaders.0", b"x", numbers, b"", b"") + data + padding(len(data))


def _record(key: bytes, value: bytes) -> bytes:
    r"""``LENGTH KEY=VALUE\n``, where the length counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) > len(str(rest)):
        length = rest + len(str(length))
    return b"%d %b=%b\n" % (length, key, value)
