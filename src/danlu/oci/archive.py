"""Unpack untrusted archives of programs: tar, compressed or not, zip, and Debian packages.

All go through the extractor of layers (:mod:`danlu.oci.tar.extract`), so no entry is ever written
outside the directory, also not through a link of the archive. In contrast to a layer, an archive
has no whiteouts, owners, special modes or extended attributes.
"""

from __future__ import annotations

import bz2
import lzma
import os
import stat
import zipfile
import zlib
from calendar import timegm
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, cast

import msgspec
from msgspec.structs import replace

from danlu.errors import OutsideError
from danlu.oci.compress import detect_compression, open_decompressor
from danlu.oci.overlay import WHITEOUT_PREFIX
from danlu.oci.tar.extract import EntryReader, LayerLimits, extract_entries
from danlu.oci.tar.layer_paths import split_layer_path
from danlu.oci.tar.read import LayerError, Readable, TarEntry, TarReader, TypeFlag
from danlu.util.sanitize import escape_unprintable

_CHUNK_SIZE = 1 << 20
_MAX_ENTRIES = 1_000_000
#: An archive may expand to this many times its own size, and always to the floor.
_MAX_RATIO = 200
_SIZE_FLOOR = 1 << 30
# PATH_MAX: Linux follows no longer link.
_MAX_LINK = 4096
_MAX_MEMBER = 16 << 20
_MAX_DEB_MEMBERS = 8

_HINT = "the file on the mirror is damaged or not the archive it is named after"

Parts = tuple[bytes, ...]


class ArchiveLayout(msgspec.Struct, frozen=True):
    """Which entries are unpacked and where, as in :class:`danlu.graph.ops.UnpackArchive`."""

    strip_components: int = 0
    include: Sequence[str] = ()
    rename: Mapping[str, str] = {}


def limit_expansion(size: int) -> int:
    """Return how many bytes an archive of ``size`` bytes may contain."""
    return max(_SIZE_FLOOR, _MAX_RATIO * size)


def unpack_archive(path: Path, root: Path, layout: ArchiveLayout, *, name: str) -> int:
    """Unpack the archive at ``path`` below ``root``, an existing directory that we own.

    Returns the number of entries. The format is recognised by its first bytes. Raises
    :class:`OutsideError`, with ``name``, if the archive is damaged, too large, or contains what an
    archive of programs must not contain: paths and links that lead out of ``root``, devices, pipes.
    """
    size = path.stat().st_size
    limits = LayerLimits(_MAX_ENTRIES, limit_expansion(size))
    try:
        with path.open("rb") as file:
            reader = _LayoutReader(_open_reader(file, limits), layout)
            entries = extract_entries(reader, root, limits=limits)
    except LayerError as error:
        raise _translate_error(error, name) from error
    if not entries:
        raise OutsideError(
            f"cannot unpack {escape_unprintable(name)}: the archive has none of the expected files",
            hint=_HINT,
        )
    return entries


def read_zip_member(file: Path | IO[bytes], member: str, *, name: str) -> bytes:
    """Return a small file of an untrusted zip.

    Raises :class:`OutsideError`, with ``name``, if the zip is damaged or lacks the file, or if that
    is too large.
    """
    shown = escape_unprintable(name)
    try:
        with zipfile.ZipFile(file) as archive, archive.open(member) as opened:
            # One byte more than allowed: the size in the zip's directory may be wrong.
            data = opened.read(_MAX_MEMBER + 1)
    except KeyError as error:
        raise OutsideError(f"{shown} does not contain {member}", hint=_HINT) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
        raise OutsideError(f"cannot read {shown}: {error}", hint=_HINT) from error
    if len(data) > _MAX_MEMBER:
        raise OutsideError(f"cannot read {shown}: {member} is too large", hint=_HINT)
    return data


def read_archive_file(path: Path, member: str, *, name: str) -> bytes | None:
    """Return the first bytes (up to 1 MiB) of a file in an archive; None if it is not there.

    Reads the archive to its end, so that a truncated one is found. Raises as
    :func:`unpack_archive`.
    """
    size = path.stat().st_size
    limits = LayerLimits(_MAX_ENTRIES, limit_expansion(size))
    found = None
    try:
        with path.open("rb") as file:
            reader = _open_reader(file, limits)
            for entry in reader:
                if entry.name == os.fsencode(member) and entry.kind == TypeFlag.REGULAR:
                    found = next(reader.content(), b"")
    except LayerError as error:
        raise _translate_error(error, name) from error
    return found


def _translate_error(error: LayerError, name: str) -> OutsideError:
    # The extractor's words are about layers of images.
    reason = error.message.replace("the layer", "the archive")
    return OutsideError(f"cannot unpack {escape_unprintable(name)}: {reason}", hint=_HINT)


def _open_reader(file: IO[bytes], limits: LayerLimits) -> EntryReader:
    start = file.read(6)
    file.seek(0)
    if start.startswith(b"PK"):
        return _ZipReader(file, limits)
    if start.startswith(b"!<arch"):
        data = _DebData(file)
        start = data.start
        return TarReader(_open_tar(data, start), limit=limits.size)
    return TarReader(_open_tar(file, start), limit=limits.size)


def _open_tar(file: Readable, start: bytes) -> Readable:
    # The standard library's decompressors only read.
    if start.startswith(b"\xfd7zXZ\0"):
        return _DecompressedFile(lzma.LZMAFile(cast("IO[bytes]", file)))
    if start.startswith(b"BZh"):
        return _DecompressedFile(bz2.BZ2File(cast("IO[bytes]", file)))
    return open_decompressor(detect_compression(start), file)


class _DebData:
    """The member ``data.tar…`` of a Debian package, an ar archive (deb(5))."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = self._find_member()
        self.start = file.read(min(6, self._left))
        file.seek(-len(self.start), os.SEEK_CUR)

    def _find_member(self) -> int:
        """Move to the member; return its size."""
        self._file.seek(8)
        for _ in range(_MAX_DEB_MEMBERS):
            header = self._file.read(60)
            name, size = header[:16].rstrip(b" /"), header[48:58].strip()
            if len(header) < 60 or header[58:] != b"`\n" or not size.isdigit():
                raise LayerError("the layer is damaged: invalid header of a Debian package")
            if name.startswith(b"data.tar"):
                return int(size)
            # Members of an ar archive begin at even offsets (ar(5)).
            self._file.seek(int(size) + int(size) % 2, os.SEEK_CUR)
        raise LayerError("the layer is damaged: a Debian package without data")

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


class _DecompressedFile:
    """A file of the standard library's decompressors, with their errors as ours."""

    def __init__(self, file: Readable) -> None:
        self._file = file

    def read(self, size: int, /) -> bytes:
        try:
            return self._file.read(size)
        except EOFError as error:
            raise LayerError("the layer is truncated") from error
        except (lzma.LZMAError, OSError) as error:
            raise LayerError(f"the layer is damaged: {error}") from error


class _LayoutReader:
    """The entries of another reader that a layout takes, under their new paths."""

    def __init__(self, reader: EntryReader, layout: ArchiveLayout) -> None:
        self._reader = reader
        self._strip = layout.strip_components
        self._include = [_split_setting(path) for path in layout.include]
        renamed = [(_split_setting(old), _split_setting(new)) for old, new in layout.rename.items()]
        # The longest path first: that of a file before that of its directory.
        self._rename = sorted(renamed, key=lambda pair: len(pair[0]), reverse=True)

    def __iter__(self) -> Iterator[TarEntry]:
        for entry in self._reader:
            parts = self._map_path(entry.name)
            if parts is not None:
                yield self._rewrite_entry(entry, parts)

    def content(self) -> Iterator[bytes]:
        return self._reader.content()

    def _map_path(self, name: bytes) -> Parts | None:
        """Return the path below the target, or None for what is not unpacked."""
        parts = split_layer_path(name)
        if self._include and not any(parts[: len(path)] == path for path in self._include):
            return None
        for old, new in self._rename:
            if parts[: len(old)] == old:
                return (*new, *parts[len(old) :])
        return parts[self._strip :] if len(parts) > self._strip else None

    def _rewrite_entry(self, entry: TarEntry, parts: Parts) -> TarEntry:
        shown = "/" + escape_unprintable(entry.name)
        if any(part.startswith(WHITEOUT_PREFIX) for part in parts):
            raise LayerError(f"the layer contains a name reserved by image layers: {shown}")
        link = entry.link
        if entry.kind == TypeFlag.FIFO:
            raise LayerError(f"the layer contains a named pipe: {shown}")
        if entry.kind == TypeFlag.HARD_LINK:
            target = self._map_path(link)
            if target is None:
                raise LayerError(
                    f"{shown} is a hard link to /{escape_unprintable(link)}, which is not unpacked"
                )
            link = b"/".join(target)
        if entry.kind == TypeFlag.SYMLINK and _leads_outside(parts, link):
            raise LayerError(
                f"{shown} is a symbolic link that leads outside: {escape_unprintable(link)}"
            )
        is_directory = entry.kind == TypeFlag.DIRECTORY or (
            entry.kind == TypeFlag.OLD_REGULAR and entry.name.endswith(b"/")
        )
        return replace(
            entry,
            name=b"/".join(parts),
            kind=TypeFlag.DIRECTORY if is_directory else entry.kind,
            mode=0o755 if is_directory or entry.mode & 0o111 else 0o644,
            uid=0,
            gid=0,
            link=link,
            attributes={},
        )


def _split_setting(path: str) -> Parts:
    return tuple(part for part in os.fsencode(path).split(b"/") if part not in (b"", b"."))


def _leads_outside(parts: Parts, link: bytes) -> bool:
    """Return whether a symbolic link at ``parts`` is absolute or has too many ``..``."""
    if link.startswith(b"/"):
        return True
    depth = len(parts) - 1
    for part in link.split(b"/"):
        depth += -1 if part == b".." else part not in (b"", b".")
        if depth < 0:
            return True
    return False


class _ZipReader:
    """The entries of a zip, as those of a tar."""

    def __init__(self, file: IO[bytes], limits: LayerLimits) -> None:
        self._limits = limits
        self._left = limits.size
        self._info: zipfile.ZipInfo | None = None
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise LayerError(f"the layer is damaged: {error}") from error

    def __iter__(self) -> Iterator[TarEntry]:
        for info in self._zip.infolist():
            self._info = info
            yield self._make_entry(info)

    def content(self) -> Iterator[bytes]:
        info = self._info
        assert info is not None
        received = 0
        try:
            with self._zip.open(info) as member:
                while piece := member.read(_CHUNK_SIZE):
                    # The sizes that the directory states are not to be trusted.
                    received += len(piece)
                    self._left -= len(piece)
                    if self._left < 0 or received > info.file_size:
                        raise LayerError(
                            f"the layer exceeds the limit of {self._limits.size} bytes"
                        )
                    yield piece
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
            raise LayerError(f"the layer is damaged: {error}") from error
        except (NotImplementedError, RuntimeError) as error:
            # An unknown compression method; an encrypted member.
            raise LayerError(f"the layer cannot be read: {error}") from error

    def _make_entry(self, info: zipfile.ZipInfo) -> TarEntry:
        name = info.filename.encode("utf-8", "surrogateescape")
        # APPNOTE 4.4.15: programs of Unix put st_mode into the upper half.
        mode = info.external_attr >> 16
        kind = TypeFlag.DIRECTORY if info.is_dir() else TypeFlag.REGULAR
        link = b""
        if stat.S_ISLNK(mode):
            kind = TypeFlag.SYMLINK
            if info.file_size > _MAX_LINK:
                raise LayerError(f"/{escape_unprintable(name)} has a target that is too long")
            link = b"".join(self.content())
        elif stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise LayerError(f"the layer contains a device: /{escape_unprintable(name)}")
        year, month, day, *clock = info.date_time
        # Programs that write no time leave it zero, but months start at 1.
        date = (year, month, day) if 1 <= month <= 12 else (1980, 1, 1)
        return TarEntry(
            name=name,
            kind=kind,
            mode=mode & 0o777,
            uid=0,
            gid=0,
            size=info.file_size if kind == TypeFlag.REGULAR else 0,
            # A zip has no time zone. UTC makes it the same everywhere.
            mtime=timegm((*date, *clock, 0, 0, 0)) * 1_000_000_000,
            link=link,
            attributes={},
        )
