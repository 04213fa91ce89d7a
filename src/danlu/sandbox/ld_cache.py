"""Read and write ``/etc/ld.so.cache``, by which the dynamic loader finds libraries.

The format is glibc's (``sysdeps/generic/dl-cache.h``, since 2.2): a header, entries in descending
order of names, strings. It may follow a table in an older format, which is skipped.
"""

from __future__ import annotations

import platform
import re
import struct
from collections.abc import Iterable

import msgspec

_OLD_MAGIC = b"ld.so-1.7.0\0"
_OLD_ENTRY_SIZE = 12
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_LITTLE_ENDIAN = 2
#: Set if the rest indexes the extension "glibc-hwcaps", which is not kept: the loader then takes
#: the entry of the same library without it.
_HWCAP_EXTENSION = 1 << 62
_MAX_STRING = 4096
_MAX_STRINGS = 16 << 20
#: ``FLAG_ELF_LIBC6`` with the flag of the architecture.
_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}
_TOKEN = re.compile(r"[0-9]+|.", re.DOTALL)


class CachedLibrary(msgspec.Struct, frozen=True):
    """A library: the name that programs ask for, its path, its ABI (``FLAG_…`` of glibc)."""

    name: str
    path: str
    flags: int
    hwcap: int = 0


def native_flags(machine: str = "") -> int:
    """Return the flags of libraries for a machine (default: this one); 0 if unknown."""
    return _FLAGS.get(machine or platform.machine(), 0)


def parse_cache(data: bytes) -> list[CachedLibrary]:
    """Return the libraries of a cache, which is untrusted; raise :class:`ValueError` if invalid."""
    start = 0
    try:
        if data.startswith(_OLD_MAGIC):
            (count,) = struct.unpack_from("<I", data, len(_OLD_MAGIC))
            # Aligned to 8 bytes, as the structure of the newer header.
            start = (len(_OLD_MAGIC) + 4 + count * _OLD_ENTRY_SIZE + 7) & ~7
        magic, count, *_ = _HEADER.unpack_from(data, start)
    except struct.error as error:
        raise ValueError(f"not a cache of the loader: {error}") from error
    first = start + _HEADER.size
    if magic != _MAGIC or first + count * _ENTRY.size > len(data):
        raise ValueError("not a cache of the loader, or it is incomplete")
    libraries = []
    size = 0
    for number in range(count):
        flags, key, value, _, hwcap = _ENTRY.unpack_from(data, first + number * _ENTRY.size)
        name, path = _read_string(data, start + key), _read_string(data, start + value)
        size += len(name) + len(path)
        if size > _MAX_STRINGS:
            raise ValueError("the cache of the loader has too long names")
        libraries.append(CachedLibrary(name, path, flags, hwcap))
    return libraries


def _read_string(data: bytes, offset: int) -> str:
    # A slice clips an offset beyond the end, which leaves a text without its end.
    text, end, _ = data[offset : offset + _MAX_STRING].partition(b"\0")
    if not end:
        raise ValueError("the cache of the loader has an invalid string")
    return text.decode("utf-8", "surrogateescape")


def render_cache(libraries: Iterable[CachedLibrary]) -> bytes:
    """Return a cache with ``libraries``; of two with the same name and flags the first wins."""
    kept = [library for library in libraries if not library.hwcap & _HWCAP_EXTENSION]
    kept.sort(key=lambda library: (_sort_key(library.name), library.flags), reverse=True)
    strings = bytearray()
    offsets: dict[str, int] = {}
    begin = _HEADER.size + len(kept) * _ENTRY.size
    for text in (text for library in kept for text in (library.name, library.path)):
        if text not in offsets:
            offsets[text] = begin + len(strings)
            strings += text.encode("utf-8", "surrogateescape") + b"\0"
    entries = (
        _ENTRY.pack(library.flags, offsets[library.name], offsets[library.path], 0, library.hwcap)
        for library in kept
    )
    header = _HEADER.pack(_MAGIC, len(kept), len(strings), _LITTLE_ENDIAN, 0)
    return b"".join((header, *entries, strings))


def _sort_key(name: str) -> tuple[tuple[int, int], ...]:
    """Return a key that orders names like glibc's ``_dl_cache_libcmp``: numbers by value."""
    return tuple(
        (1, int(token)) if token.isdecimal() else (0, ord(token)) for token in _TOKEN.findall(name)
    )
