"""The project's copy in a pod: what was changed here goes there, what programs made comes back.

Nothing but a shell, ``find``, ``stat`` and ``tar`` is needed in the image. Both sides are compared
with what they were when they were last equal, by sizes and times.
"""

from __future__ import annotations

import os
import re
import tarfile
import tempfile
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import msgspec
from anyio import Lock, to_thread

from danlu.engine.kubernetes.pod import EnvironmentPod
from danlu.engine.kubernetes.program import pipe_script, run_script
from danlu.engine.kubernetes.scripts import (
    LIST_SCRIPT,
    PACK_SCRIPT,
    REMOVE_SCRIPT,
    RENAME_SCRIPT,
    UNPACK_SCRIPT,
)
from danlu.engine.project_files import (
    CONFLICT_SUFFIX,
    FileRecord,
    add_file,
    decode_value,
    describe_path,
    encode_value,
    list_files,
    read_contents,
)
from danlu.errors import OutsideError, UsageError
from danlu.sandbox.types import PROJECT_DIRECTORY
from danlu.sources.build_context import find_ignored
from danlu.util.files import write_atomic
from danlu.util.safe_paths import ProjectTree

#: A line of LIST_SCRIPT.
_LISTED_FILE = re.compile(rb"(\d+ \d+ [0-9a-f]+) \./(.+)")
_MAX_NAMES = 500
_MAX_NAMES_BYTES = 1 << 16
_ARCHIVE_OVERHEAD = 64 << 20


class _SyncedFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file as it was here and in the pod (size, time, mode) when both were equal."""

    here: FileRecord
    there: str = ""


class FetchReport(msgspec.Struct, frozen=True):
    """Files that both sides have changed, and files that cannot be written here.

    The latter are below a link, or have the name of a directory.
    """

    conflicts: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


class _SyncRecords(msgspec.Struct, frozen=True):
    """The files of a project as they were last equal on both sides, and the pod's volume."""

    volume: str = ""
    files: dict[str, _SyncedFile] = {}


class PodProjectCopy:
    """Exchanges files between a project and its copy in a pod.

    ``volume`` identifies where the pod keeps the copy: another one is empty.
    """

    def __init__(
        self,
        pod: EnvironmentPod,
        project: Path,
        records_file: Path,
        *,
        volume: str,
        directory: str = PROJECT_DIRECTORY,
    ) -> None:
        self._pod = pod
        self._project = project
        self._records_file = records_file
        self._volume = volume
        self._directory = directory
        found = _read_records(records_file)
        self._records = found.files if found.volume == volume else {}
        self._lock = Lock()

    async def send_changes(self) -> tuple[str, ...]:
        """Copy what was changed here since the last time.

        Returns the files that were changed in the pod, too, which are kept there under another
        name. Raises :class:`~danlu.errors.DanluError`.
        """
        async with self._lock, _translate_errors(self._project):
            files = {record.path: record for record in await self._list_here()}
            wanted = [
                record
                for path, record in files.items()
                if path not in self._records or self._records[path].here != record
            ]
            gone = [path for path in self._records if path not in files]
            if not wanted and not gone:
                return ()
            return await self._send_files(wanted, gone, await self._list_there())

    async def _send_files(
        self, wanted: list[FileRecord], gone: list[str], there: Mapping[str, str]
    ) -> tuple[str, ...]:
        changed = self._compare_files(there)
        conflicts = [
            record.path
            for record in wanted
            if record.path in changed and not _is_same(record, there[record.path])
        ]
        await self._run_on_names(RENAME_SCRIPT, conflicts, CONFLICT_SUFFIX)
        replaced = [
            record.path
            for record in wanted
            if record.path in self._records and self._records[record.path].here.kind != record.kind
        ]
        removed = [path for path in (*gone, *replaced) if path not in changed]
        # What is in a directory before the directory itself.
        await self._run_on_names(REMOVE_SCRIPT, sorted(removed, reverse=True))
        with tempfile.TemporaryFile() as archive, open(os.devnull, "wb") as null:
            sent = await to_thread.run_sync(_write_archive, archive, self._project, wanted)
            archive.seek(0)
            await pipe_script(
                self._pod, UNPACK_SCRIPT, self._directory, source=archive, target=null
            )
        for path in gone:
            del self._records[path]
        arrived = await self._list_there()
        for record in sent:
            self._records[record.path] = _SyncedFile(record, arrived.get(record.path, ""))
        self._write_records()
        return tuple(conflicts)

    async def fetch_changes(self) -> FetchReport:
        """Copy what was made or changed in the pod since the last time.

        The version of a file that was changed here, too, gets another name. Ignored files stay in
        the pod, and files that were removed there stay here. Raises
        :class:`~danlu.errors.DanluError`.
        """
        async with self._lock, _translate_errors(self._project):
            there = await self._list_there()
            changed = self._compare_files(there)
            with ProjectTree(self._project) as tree:
                kept = changed - find_ignored(tree, changed)
            if not kept:
                return FetchReport()
            return await self._fetch_files(kept, there)

    async def _fetch_files(self, paths: set[str], there: Mapping[str, str]) -> FetchReport:
        targets: dict[str, str] = {}
        conflicts, skipped = [], []
        for path in sorted(paths):
            if not await to_thread.run_sync(_can_write, self._project, path):
                skipped.append(path)
                continue
            here = await to_thread.run_sync(_describe_here, self._project, path)
            known = self._records.get(path)
            is_ours = here is not None and (known is None or known.here != here)
            targets[f"./{path}"] = path + (CONFLICT_SUFFIX if is_ours else "")
            if is_ours:
                conflicts.append(path)
        read: list[str] = []
        for batch in _split_names(sorted(paths - set(skipped))):
            size = sum(int(there[path].partition(" ")[0]) for path in batch)
            read += await self._fetch_batch(batch, targets, size)
        for name in read:
            path = name.removeprefix("./")
            here = await to_thread.run_sync(_describe_here, self._project, path)
            if here is not None:
                self._records[path] = _SyncedFile(here, there[path])
        self._write_records()
        return FetchReport(tuple(conflicts), tuple(skipped))

    async def _fetch_batch(
        self, paths: list[str], targets: Mapping[str, str], size: int
    ) -> list[str]:
        """Copy files of ``size`` bytes together; they may have grown since they were listed."""
        with BytesIO(_join_names(paths)) as names, tempfile.TemporaryFile() as archive:
            await pipe_script(
                self._pod,
                PACK_SCRIPT,
                self._directory,
                source=names,
                target=archive,
                limit=2 * size + _ARCHIVE_OVERHEAD,
            )
            if not archive.tell():  # all are gone again
                return []
            archive.seek(0)
            return await to_thread.run_sync(_read_archive, archive, self._project, targets)

    def _compare_files(self, there: Mapping[str, str]) -> set[str]:
        """Return the files that were made or changed in the pod."""
        return {
            path
            for path, state in there.items()
            if path not in self._records or self._records[path].there != state
        }

    async def _list_here(self) -> tuple[FileRecord, ...]:
        return await to_thread.run_sync(list_files, self._project)

    async def _list_there(self) -> dict[str, str]:
        output = await run_script(self._pod, LIST_SCRIPT, self._directory)
        found = {}
        for line in output.split(b"\n"):
            match = _LISTED_FILE.fullmatch(line)
            if match is not None:
                found[os.fsdecode(match[2])] = match[1].decode()
        return found

    async def _run_on_names(self, script: str, paths: Collection[str], *args: str) -> None:
        paths = [path for path in paths if "\n" not in path]
        if paths:
            await run_script(self._pod, script, self._directory, *args, data=_join_names(paths))

    def _write_records(self) -> None:
        records = _SyncRecords(self._volume, self._records)
        write_atomic(self._records_file, encode_value(records))


@asynccontextmanager
async def _translate_errors(project: Path) -> AsyncIterator[None]:
    """Turn errors of this machine's files into ours: a full disk, a file without permission."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        name = f" {error.filename}" if error.filename else ""
        raise OutsideError(f"cannot copy {project}:{name}: {reason}") from error


def _read_records(file: Path) -> _SyncRecords:
    with suppress(FileNotFoundError, ValueError):
        return decode_value(file.read_bytes(), _SyncRecords)
    return _SyncRecords()


def _is_same(here: FileRecord, there: str) -> bool:
    """Return whether a file in the pod has the size and time of the one here."""
    return there.startswith(f"{here.size} {here.mtime // 1_000_000_000} ")


def _describe_here(project: Path, path: str) -> FileRecord | None:
    with suppress(UsageError):
        return describe_path(project, path)
    return None


def _split_names(paths: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of names that fit into a program's arguments."""
    batch: list[str] = []
    size = 0
    for path in paths:
        length = len(os.fsencode(path))
        if batch and (size + length > _MAX_NAMES_BYTES or len(batch) == _MAX_NAMES):
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += length
    if batch:
        yield batch


def _can_write(project: Path, path: str) -> bool:
    """Return whether a file may be written: no part of its path is a link."""
    parts = path.split("/")
    parents = [_describe_here(project, "/".join(parts[:count])) for count in range(1, len(parts))]
    here = _describe_here(project, path)
    return all(parent is None or parent.kind == "directory" for parent in parents) and (
        here is None or here.kind == "file"
    )


def _join_names(paths: Iterable[str]) -> bytes:
    return b"".join(b"./" + os.fsencode(path) + b"\n" for path in paths)


def _write_archive(
    archive: BinaryIO, project: Path, records: Iterable[FileRecord]
) -> list[FileRecord]:
    """Write an archive; return what it contains, as it was when it was read.

    In GNU's format, because BusyBox ignores the long names of newer ones.
    """
    written = []
    with (
        ProjectTree(project) as tree,
        tarfile.open(fileobj=archive, mode="w|", format=tarfile.GNU_FORMAT) as tar,
    ):
        for record in records:
            name = f"./{record.path}"
            member = tarfile.TarInfo(name)
            if record.kind == "directory":
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(member)
            elif record.kind == "link":
                member.type, member.linkname = tarfile.SYMTYPE, record.target
                tar.addfile(member)
            else:
                with suppress(FileNotFoundError, IsADirectoryError, UsageError):
                    add_file(tar, name, os.fdopen(tree.open_file(record.path), "rb"))
            written.append(record)
    return written


def _read_archive(archive: BinaryIO, project: Path, targets: Mapping[str, str]) -> list[str]:
    return [record.path for record in read_contents(archive, project, targets)]
