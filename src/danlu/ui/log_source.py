"""The logs of jobs as files that can be read from anywhere: local ones, and copies of a cluster's.

A cluster only streams logs. While a page shows such a job, its lines are copied to a temporary
directory, in the format of local jobs and with their limits.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime
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

    ``begin`` and ``end`` are those of the whole log. ``job`` differs between jobs of one name.
    """

    job: str
    first: int
    begin: int
    end: int
    lines: tuple[LogLine, ...]
    cursor: Cursor


@dataclass(frozen=True)
class _FoundLogs:
    """The files of a job's logs, as they were at ``micros`` (Unix time)."""

    job: str
    directory: Path
    replicas: Sequence[ReplicaId]
    micros: int
    is_complete: bool
    error: DanluError | None = None

    def read_stamps(self) -> Sequence[Hashable]:
        """Return a value that differs after a line was written."""
        return [_read_stamp(self.directory, replica) for replica in self.replicas]

    def open_index(self) -> MergedLogIndex:
        return MergedLogIndex(self.directory, self.replicas, micros=self.micros)


class LogSources:
    """Opens the logs of a backend's jobs."""

    def __init__(self, backend: JobBackend) -> None:
        self._backend = backend
        self._copies: dict[tuple[str, Hashable], _LogCopy] = {}

    async def read_window(
        self, name: str, replicas: Sequence[str], first: int, count: int
    ) -> LogBatch:
        """Return up to ``count`` lines from the index ``first`` on."""
        found = await self._find_logs(name, replicas)
        with found.open_index() as index:
            return _read_batch(found.job, index, index.find_cursor(max(index.begin, first)), count)

    async def open_index(self, name: str, replicas: Sequence[str] = ()) -> MergedLogIndex:
        """Return the index of these replicas' logs (default: all), which the caller closes."""
        return (await self._find_logs(name, replicas)).open_index()

    async def _find_logs(self, name: str, names: Sequence[str]) -> _FoundLogs:
        view = await self._backend.view(name)
        # Before the list of replicas: what another replica writes from now on comes later.
        micros = time.time_ns() // 1000
        job = f"{view.created.timestamp():.6f}" if view.created else "0"

        def choose(logged: Sequence[ReplicaId]) -> Sequence[ReplicaId]:
            return [replica for replica in logged if str(replica) in names or not names]

        if isinstance(self._backend, LogDirectories):
            directory = self._backend.log_directory(name)
            chosen = choose(self._backend.list_logged_replicas(name))
            return _FoundLogs(job, directory, chosen, micros, view.finished)
        copy = self._find_copy(name, view.created)
        chosen = choose(copy.replicas)
        return _FoundLogs(job, copy.directory, chosen, micros, copy.is_complete, copy.error)

    def _find_copy(self, name: str, created: datetime | None) -> _LogCopy:
        key = name, created
        if key not in self._copies:
            while len(self._copies) >= _MAX_COPIES:
                self._copies.pop(next(iter(self._copies))).close()
            self._copies[key] = _LogCopy(self._backend, name)
        return self._copies[key]

    async def follow(
        self, name: str, replicas: Sequence[str], job: str, cursor: Cursor | None
    ) -> AsyncGenerator[LogBatch, None]:
        """Yield new lines as they come, from the ``cursor`` of a batch of ``job`` on.

        Without one, or if another job has this name now, the last lines come first. Ends when the
        job has finished and all its lines were yielded.
        """
        self._forget_failed_copies()
        before: Sequence[Hashable] | None = None
        while True:
            found = await self._find_logs(name, replicas)
            if found.job != job:
                job, cursor, before = found.job, None, None
            stamps = found.read_stamps()
            if stamps != before or found.is_complete:
                is_first = cursor is None
                with found.open_index() as index:
                    batch = _read_batch(job, index, _catch_up(index, cursor), _BATCH_LINES)
                    cursor = batch.cursor
                    is_read = index.is_settled and index.count_until(cursor) >= index.end
                before = stamps if is_read else None
                if batch.lines or is_first:
                    yield batch
                if found.is_complete and is_read:
                    break
            await asyncio.sleep(_POLL_SECONDS)
        if found.error is not None:
            raise found.error

    def _forget_failed_copies(self) -> None:
        for key, copy in list(self._copies.items()):
            if copy.error is not None:
                self._copies.pop(key).close()

    def close(self) -> None:
        """Remove the copies."""
        for copy in self._copies.values():
            copy.close()
        self._copies.clear()


def _catch_up(index: MergedLogIndex, cursor: Cursor | None) -> Cursor:
    """Return the cursor, or, if it is far behind, one near the end."""
    if cursor is not None and index.end - index.count_until(cursor) <= _MAX_LAG_LINES:
        return cursor
    return index.find_cursor(max(index.begin, index.end - _CATCH_UP_LINES))


def _read_batch(job: str, index: MergedLogIndex, cursor: Cursor, count: int) -> LogBatch:
    first, lines = index.count_until(cursor), index.read(cursor, count)
    return LogBatch(job, first, index.begin, index.end, tuple(lines), advance_cursor(cursor, lines))


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
