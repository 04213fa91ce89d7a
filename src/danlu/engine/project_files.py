"""The files of a project as both machines describe them, and how they are exchanged.

A message is a line of JSON. The local side sends a :class:`ProjectOffer`; the other side answers
with a :class:`ProjectRequest` and gets a tar of the requested files, to which it answers with a
:class:`ProjectResult`. Files are compared by size and time, as ``rsync`` and ``git status`` do.
"""

from __future__ import annotations

import json
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

import msgspec

from danlu.errors import OutsideError, UsageError
from danlu.sources.build_context import list_entries
from danlu.util.decoding import convert_value
from danlu.util.safe_paths import (
    ProjectTree,
    open_beneath,
    replace_beneath,
    split_beneath,
)

#: Of project files that danlu writes itself; not part of a build context.
LOCK_FILE = "danlu.lock"
#: Appended to the name of a copy of a file that both sides have changed.
CONFLICT_SUFFIX = ".remote"
_MAX_MESSAGE = 256 << 20
_CHUNK_SIZE = 1 << 20

M = TypeVar("M")


class FileRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file, directory or link of a project; times are nanoseconds since 1970."""

    path: str
    kind: Literal["file", "directory", "link"]
    size: int = 0
    mtime: int = 0
    mode: int = 0o644
    target: str = ""


class ProjectOffer(msgspec.Struct, frozen=True):
    """All files of a project: its ``key`` on the other machine, and the directory's name.

    ``only`` are the paths to fetch, empty for all.
    """

    key: str
    name: str
    files: tuple[FileRecord, ...] = ()
    only: tuple[str, ...] = ()


class ProjectRequest(msgspec.Struct, frozen=True):
    """The project's directory on the other machine, and the paths of files to send."""

    directory: str
    wanted: tuple[str, ...] = ()


class ProjectResult(msgspec.Struct, frozen=True):
    """Files that both sides had changed; the other side's are kept next to them."""

    conflicts: tuple[str, ...] = ()


class ChangeList(msgspec.Struct, frozen=True):
    """Files that the other machine has made or changed, which follow as a tar."""

    files: tuple[FileRecord, ...] = ()


def list_files(project: Path) -> tuple[FileRecord, ...]:
    """Return what belongs to a project, parents before what is in them.

    Ignored files (``.danluignore``, ``.dockerignore`` or ``.gitignore``) are left out, and sockets,
    pipes and devices.
    """
    records = []
    with ProjectTree(project) as tree:
        for entry in list_entries(tree, "."):
            record = _describe_entry(project, entry.path, entry.status)
            if record is not None:
                records.append(record)
        status = tree.status(LOCK_FILE)
        if status is not None and stat.S_ISREG(status.st_mode):
            records.append(_describe_file(LOCK_FILE, status))
    return tuple(records)


def describe_path(root: Path, path: str) -> FileRecord | None:
    """Return the record of an existing path below ``root``; None for anything else."""
    *parents, name = split_beneath(path)
    try:
        with open_beneath(root, parents) as directory:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            target = ""
            if stat.S_ISLNK(status.st_mode):
                target = os.fsdecode(os.readlink(name, dir_fd=directory))
    except (OSError, UsageError):
        return None
    if stat.S_ISLNK(status.st_mode):
        return FileRecord(path, "link", target=target)
    if stat.S_ISDIR(status.st_mode):
        return FileRecord(path, "directory")
    return _describe_file(path, status) if stat.S_ISREG(status.st_mode) else None


def _describe_entry(project: Path, path: str, status: os.stat_result) -> FileRecord | None:
    if stat.S_ISREG(status.st_mode):
        return _describe_file(path, status)
    if stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode):
        return describe_path(project, path)
    return None


def _describe_file(path: str, status: os.stat_result) -> FileRecord:
    mode = 0o755 if status.st_mode & 0o100 else 0o644
    return FileRecord(path, "file", status.st_size, status.st_mtime_ns, mode)


# -- messages


def encode_value(value: object) -> bytes:
    """Encode a message or records as one line of JSON.

    Names that are not UTF-8 become escapes of surrogates, which msgspec does not write.
    """
    return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


def decode_value(data: bytes, type: type[M]) -> M:
    """Decode what :func:`encode_value` has written; raise :class:`ValueError` if it is invalid."""
    return convert_value(json.loads(data), type)


def write_message(stream: BinaryIO, message: msgspec.Struct) -> None:
    """Write a message."""
    stream.write(encode_value(message) + b"\n")
    stream.flush()


def read_message(stream: BinaryIO, type: type[M]) -> M:
    """Read a message; raise :class:`EOFError` at the end, :class:`OutsideError` if invalid."""
    line = stream.readline(_MAX_MESSAGE)
    if not line:
        raise EOFError
    try:
        return decode_value(line, type)
    except ValueError as error:
        raise OutsideError(f"invalid message: {error}") from error


# -- contents


def write_contents(stream: BinaryIO, project: Path, paths: Iterator[str]) -> None:
    """Write a tar of regular files of the project; those that are gone are left out."""
    with (
        ProjectTree(project) as tree,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in paths:
            with suppress(FileNotFoundError, IsADirectoryError, UsageError):
                add_file(archive, path, os.fdopen(tree.open_file(path), "rb"))


def add_file(archive: tarfile.TarFile, path: str, file: BinaryIO) -> None:
    """Add an open file to an archive, and close it."""
    with file:
        status = os.fstat(file.fileno())
        member = tarfile.TarInfo(path)
        member.size = status.st_size
        member.mtime = status.st_mtime_ns // 1_000_000_000
        # As text: a float has too few digits for nanoseconds.
        member.pax_headers = {"DANLU.mtime": str(status.st_mtime_ns)}
        member.mode = 0o755 if status.st_mode & 0o100 else 0o644
        archive.addfile(member, _PaddedFile(file, status.st_size))


class _PaddedFile:
    """Reads as many bytes as the tar header declares, even if the file is truncated meanwhile."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = _CHUNK_SIZE, /) -> bytes:
        """Return the next bytes."""
        size = min(size, self._left)
        data = self._file.read(size)
        self._left -= size
        return data + bytes(size - len(data))


def read_contents(stream: BinaryIO, root: Path, wanted: Mapping[str, str]) -> Iterator[FileRecord]:
    """Write the files of a tar below ``root``; yield the record of each.

    ``wanted`` maps the paths that are accepted to where they are written. The sender is not
    trusted: other members are errors, and no link is followed.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                source = archive.extractfile(member) if member.isreg() else None
                if source is None or member.name not in wanted:
                    raise OutsideError(f"unexpected file {member.name!r}")
                precise = member.pax_headers.get("DANLU.mtime")
                mtime = int(precise) if precise else int(member.mtime) * 1_000_000_000
                # Only the executable bit is kept: the rest depends on the umask there.
                mode = 0o755 if member.mode & 0o100 else 0o644
                with replace_beneath(root, wanted[member.name], mode=mode) as file:
                    while data := source.read(_CHUNK_SIZE):
                        file.write(data)
                    file.flush()
                    # Before the file gets its name: it is recognised as unchanged by its time.
                    os.utime(file.fileno(), ns=(mtime, mtime))
                yield FileRecord(member.name, "file", member.size, mtime, mode)
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise OutsideError(f"cannot read the files: {error}") from error
