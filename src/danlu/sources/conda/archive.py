"""Read the archive of a conda package: ``.conda``, or the older ``.tar.bz2``.

A ``.conda`` is a zip of two tars compressed with zstd, ``info-…`` and ``pkg-…`` (conda's CEP 2 and
its package format, version 2). A ``.tar.bz2`` is one tar, which usually begins with ``info/``.
"""

from __future__ import annotations

import bz2
import shlex
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

import msgspec

from danlu.oci.compress import open_decompressor
from danlu.oci.tar.read import LayerError, Readable, TarReader, TypeFlag
from danlu.util.decoding import convert_value, decode_json

#: An archive may expand to this many times its own size, and always to the floor.
_MAX_RATIO = 300
_SIZE_FLOOR = 2 << 30
_MAX_METADATA_SIZE = 256 << 20

#: What ``info/`` contains that an installer needs; ``files`` and ``has_prefix`` are what packages
#: had before ``paths.json``.
_METADATA = ("index.json", "paths.json", "link.json", "files", "has_prefix")
_NEEDED_METADATA = frozenset({"index.json", "paths.json"})

#: The type flags of regular files.
FILE_KINDS = (TypeFlag.REGULAR, TypeFlag.OLD_REGULAR, TypeFlag.CONTIGUOUS)

#: The prefix of packages that do not state one (conda's ``PREFIX_PLACEHOLDER``).
_DEFAULT_PLACEHOLDER = "/opt/anaconda1anaconda2anaconda3"


#: What the standard library raises for a damaged or hostile file: a :class:`ValueError` for names
#: and sizes, a :class:`RuntimeError` for an encrypted or an unknown kind of member.
_READ_ERRORS = (
    OSError, EOFError, ValueError, RuntimeError, OverflowError, zipfile.BadZipFile, zlib.error,
    struct.error,
)  # fmt: skip


class PathEntry(msgspec.Struct, frozen=True):
    """A path that a package lists, and the prefix in it to replace, if any."""

    path: str = msgspec.field(name="_path")
    prefix_placeholder: str | None = None
    file_mode: Literal["text", "binary"] | None = None


class _PathsFile(msgspec.Struct, frozen=True):
    paths: list[PathEntry]


class InvalidArchive(Exception):
    """The file is not a conda package, or is damaged; the text says why."""


class CondaArchive:
    """A conda package at ``path``, an untrusted file of the name ``name``."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._is_legacy = name.endswith(".tar.bz2")
        self._limit = max(_SIZE_FLOOR, _MAX_RATIO * path.stat().st_size)

    def read_metadata(self) -> dict[str, bytes]:
        """Return the files of ``info/`` that matter, by their names below it.

        Raises :class:`InvalidArchive`, as all methods do.
        """
        found: dict[str, bytes] = {}
        with self._open_tar("info") as reader:
            for entry in reader:
                directory, _, name = normalize_path(entry.name).rpartition("/")
                if directory == "info" and name in _METADATA and entry.kind in FILE_KINDS:
                    if entry.size > _MAX_METADATA_SIZE:
                        raise InvalidArchive(f"info/{name} is too large")
                    found[name] = b"".join(reader.content())
                elif directory.partition("/")[0] != "info" and found.keys() >= _NEEDED_METADATA:
                    # The rest of a .tar.bz2 are usually the files, which are read only once.
                    break
        return found

    @contextmanager
    def open_files(self) -> Iterator[TarReader]:
        """Yield a reader of the package's files; those of ``info/`` may be among them."""
        with self._open_tar("pkg") as reader:
            yield reader

    @contextmanager
    def _open_tar(self, part: str) -> Iterator[TarReader]:
        try:
            with self._path.open("rb") as file:
                stream = self._open_stream(file, part)
                yield TarReader(stream, limit=self._limit, hashed=False)
        except LayerError as error:
            # The reader's words are about layers of images.
            raise InvalidArchive(error.message.replace("the layer", "the archive")) from error

    def _open_stream(self, file: IO[bytes], part: str) -> Readable:
        if self._is_legacy:
            return _CheckedStream(bz2.BZ2File(file))
        try:
            archive = zipfile.ZipFile(file)
            names = [
                name
                for name in archive.namelist()
                if name.startswith(f"{part}-") and name.endswith(".tar.zst")
            ]
            if len(names) != 1:
                raise InvalidArchive(f"it has {len(names)} members {part}-*.tar.zst")
            member = archive.open(names[0])
        except _READ_ERRORS as error:
            raise InvalidArchive(str(error) or type(error).__name__) from error
        return open_decompressor("zstd", _CheckedStream(member))


class _CheckedStream:
    """A stream of the standard library, with its errors as ours."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._stream.read(size)
        except _READ_ERRORS as error:
            raise InvalidArchive(str(error) or type(error).__name__) from error


def normalize_path(name: bytes) -> str:
    """Return the path of a tar's entry as packages list it."""
    return name.removeprefix(b"./").rstrip(b"/").decode("utf-8", "surrogateescape")


def list_paths(metadata: Mapping[str, bytes]) -> list[PathEntry]:
    """Return the paths in the package's metadata.

    Raises :class:`InvalidArchive`.
    """
    data = metadata.get("paths.json")
    if data is None:
        return _list_legacy_paths(metadata)
    try:
        return decode_json(data, _PathsFile).paths
    except msgspec.DecodeError as error:
        raise InvalidArchive(f"an invalid info/paths.json: {error}") from error


def _list_legacy_paths(metadata: Mapping[str, bytes]) -> list[PathEntry]:
    if "files" not in metadata:
        raise InvalidArchive("it has no info/paths.json")
    try:
        lines = metadata["files"].decode().splitlines()
        prefixes = [_parse_prefix(line) for line in _split_lines(metadata.get("has_prefix", b""))]
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidArchive(f"an invalid info/files or info/has_prefix: {error}") from error
    replaced = {entry.path: entry for entry in prefixes}
    return [replaced.get(path) or PathEntry(path) for path in lines if path]


def _split_lines(data: bytes) -> list[str]:
    return [line for line in data.decode().splitlines() if line.strip()]


def _parse_prefix(line: str) -> PathEntry:
    """Parse ``PLACEHOLDER MODE PATH`` or ``PATH``, whose words may be quoted."""
    words = [word.strip("\"'") for word in shlex.split(line, posix=False)]
    if len(words) == 1:
        return PathEntry(words[0], _DEFAULT_PLACEHOLDER)
    if len(words) != 3:
        raise ValueError(line)
    placeholder, mode, path = words
    fields = {"prefix_placeholder": placeholder, "file_mode": mode, "_path": path}
    return convert_value(fields, PathEntry)
