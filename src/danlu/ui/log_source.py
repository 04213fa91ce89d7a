"""The logs of jobs as files that can be read from anywhere: local ones, and copies of a cluster's.

A cluster only streams logs. While a page shows such a job, its lines are copied to a temporary
directory, in the format of local jobs and with their limits.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Hashable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from danlu.errors import DanluError
from danlu.jobs.local.log_files import LogWriter, format_record, log_file
from danlu.jobs.local.log_index import Cursor, MergedLogIndex, advance_cursor
from danlu.jobs.types import JobBackend, LogLine
from danlu.training.types import ReplicaId

_LOG_BYTES, _LOG_FILES = 16 << 20, 7
_MAX_COPIES = 8
#: Seconds between two looks for new lines; also what coalesces them.
_POLL_SECONDS = 0.1
#: A page that is further behind gets the newest lines and fetches others when it shows them.
_MAX_LAG_LINES, _CATCH_UP_LINES = 5000, 500
_BATCH_LINES = 1000


@runtime_checkable
class LogDirectories(Protocol):
    """A backend whose logs are files of this machine."""

    def log_directory(self, name: str) -> Path:
        """Return the directory of a job's logs; :class:`UsageError` if it does not exist."""

    def list_logged_replicas(self, name: str) -> Sequence[ReplicaId]:
        """Return the replicas that have a log."""


class LogBatch(msgspec.Struct, frozen=True):
    """New lines; ``first`` is the index of the first, ``cursor`` is after the last.

    ``begin`` and ``end`` are those of the whole log.
    """

    first: int
    begin: int
    end: int
    lines: tuple[LogLine, ...]
    cursor: Cursor


class LogSources:
    """Opens the logs of a backend's jobs."""

    def __init__(self, backend: JobBackend) -> None:
        self._backend = backend
        self._copies: dict[tuple[str, Hashable], _LogCopy] = {}

    async def open_index(self, name: str, replicas: Sequence[str] = ()) -> MergedLogIndex:
        """Return the index of these replicas' logs (default: all), which the caller closes."""
        directory, logged = await self._find_logs(name)
        return MergedLogIndex(directory, _choose_replicas(logged, replicas))

    async def _find_logs(self, name: str) -> tuple[Path, Sequence[ReplicaId]]:
        if isinstance(self._backend, LogDirectories):
            found = self._backend
            return found.log_directory(name), found.list_logged_replicas(name)
        copy = await self._find_copy(name)
        return copy.directory, copy.replicas

    async def _find_copy(self, name: str) -> _LogCopy:
        view = await self._backend.view(name)
        key = name, view.created
        if key in self._copies and self._copies[key].error is not None:
            self._copies.pop(key).close()  # try again
        if key not in self._copies:
            while len(self._copies) >= _MAX_COPIES:
                self._copies.pop(next(iter(self._copies))).close()
            self._copies[key] = _LogCopy(self._backend, name)
        return self._copies[key]

    async def follow(
        self, name: str, replicas: Sequence[str], cursor: Cursor | None
    ) -> AsyncIterator[LogBatch]:
        """Yield new lines as they come, from ``cursor`` on; without one, the last lines first.

        Ends when the job has finished and all its lines were yielded.
        """
        before: list[Hashable] | None = None
        over = False
        is_local = isinstance(self._backend, LogDirectories)
        while True:
            directory, logged = await self._find_logs(name)
            chosen = _choose_replicas(logged, replicas)
            stamp = [_read_stamp(directory, id) for id in chosen]
            if stamp != before or over:
                with MergedLogIndex(directory, chosen) as index:
                    if is_local and cursor is not None and index.count_until(cursor) > index.end:
                        cursor = None  # another job of this name has begun
                    batch = _read_batch(index, cursor)
                    before = stamp if index.is_settled else None
                if batch.lines or cursor is None:
                    cursor = batch.cursor
                    yield batch
                if sum(cursor.get(str(id), 0) for id in chosen) < batch.end:
                    before = None
                elif over and before is not None:
                    return
            if not over:
                over = await self._is_over(name)
            await asyncio.sleep(_POLL_SECONDS)

    async def _is_over(self, name: str) -> bool:
        for (copied, _), copy in self._copies.items():
            if copied == name:
                if copy.error is not None:
                    raise copy.error
                return copy.is_complete
        try:
            return (await self._backend.view(name)).finished
        except DanluError:
            return True  # removed meanwhile

    def close(self) -> None:
        """Remove the copies."""
        for copy in self._copies.values():
            copy.close()
        self._copies.clear()


def _choose_replicas(logged: Sequence[ReplicaId], names: Sequence[str]) -> list[ReplicaId]:
    return [replica for replica in logged if str(replica) in names or not names]


def _read_batch(index: MergedLogIndex, cursor: Cursor | None) -> LogBatch:
    first = None if cursor is None else index.count_until(cursor)
    if first is None or index.end - first > _MAX_LAG_LINES:
        cursor = index.find_cursor(max(index.begin, index.end - _CATCH_UP_LINES))
        first = sum(cursor.values())
    assert cursor is not None
    lines = index.read(cursor, _BATCH_LINES)
    return LogBatch(first, index.begin, index.end, tuple(lines), advance_cursor(cursor, lines))


def _read_stamp(directory: Path, replica: ReplicaId) -> Hashable:
    try:
        status = log_file(directory, replica).stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size


class _LogCopy:
    """Copies the log lines of one job to files."""

    def __init__(self, backend: JobBackend, name: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="danlu-ui-")
        self.directory = Path(self._directory.name)
        self.is_complete = False
        self.error: DanluError | None = None
        self._writers: dict[ReplicaId, LogWriter] = {}
        self._last = 0
        self._task = asyncio.create_task(self._copy_lines(backend, name))

    @property
    def replicas(self) -> Sequence[ReplicaId]:
        """The replicas that have a log."""
        return list(self._writers)

    async def _copy_lines(self, backend: JobBackend, name: str) -> None:
        try:
            async for line in backend.logs(name, follow=True):
                self._write_line(line)
                await asyncio.sleep(0)
        except DanluError as error:
            self.error = error
        self.is_complete = True

    def _write_line(self, line: LogLine) -> None:
        if line.replica not in self._writers:
            path = log_file(self.directory, line.replica)
            writer = LogWriter(path, limit=_LOG_BYTES, keep=_LOG_FILES)
            self._writers[line.replica] = writer
        # In the order in which they come: clocks of nodes differ, and an index must not change.
        self._last = max(self._last, round(line.time.timestamp() * 1_000_000))
        self._writers[line.replica].append_records(format_record(line, self._last))

    def close(self) -> None:
        """Stop copying and remove the files."""
        self._task.cancel()
        for writer in self._writers.values():
            writer.close()
        self._directory.cleanup()
