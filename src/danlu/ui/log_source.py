"""The logs of jobs as files that can be read from anywhere: local ones, and copies of a cluster's.

A cluster only streams logs. While a page shows such a job, its lines are copied to a temporary
directory, in the format of local jobs and with their limits.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Hashable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from danlu.errors import DanluError
from danlu.jobs.local.log_files import LogWriter, format_record, log_file
from danlu.jobs.local.log_index import Cursor, MergedLogIndex, advance_cursor
from danlu.jobs.types import JobBackend, JobView, LogLine
from danlu.training.types import ReplicaId

_LOG_BYTES, _LOG_FILES = 16 << 20, 7
_MAX_COPIES = 8
#: A line of a running job is visible when it is this old. Lines get their time shortly before they
#: are written, so what becomes visible later is never earlier in the order.
_SETTLE_MICROS = 20_000
#: Seconds between two looks for new lines; also what coalesces them.
_POLL_SECONDS = 0.1
#: A page that is further behind gets the newest lines and fetches others when it shows them.
_MAX_LAG_LINES, _CATCH_UP_LINES = 5000, 500
_BATCH_LINES = 1000


@runtime_checkable
class LocalLogBackend(JobBackend, Protocol):
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
class _LogState:
    """The log files of a job, in which lines from ``until`` on (Unix time in µs) may be missing."""

    job: str
    directory: Path
    replicas: Sequence[ReplicaId]
    is_complete: bool
    until: int | None = None
    error: DanluError | None = None

    def choose(self, names: Sequence[str]) -> Sequence[ReplicaId]:
        """Return the replicas with these names; without names, all."""
        return [replica for replica in self.replicas if str(replica) in names or not names]

    def open_index(self, names: Sequence[str]) -> MergedLogIndex:
        """Return the index of these replicas' logs, which the caller closes."""
        return MergedLogIndex(self.directory, self.choose(names), until=self.until)

    def read_stamps(self, names: Sequence[str]) -> Sequence[Hashable]:
        """Return a value that differs after one of these replicas has written a line."""
        return [_read_stamp(self.directory, replica) for replica in self.choose(names)]


class _JobLogs(Protocol):
    """The log files of a job while it writes them."""

    async def read_state(self) -> _LogState:
        """Return the present state; :class:`UsageError` if the job does not exist any more."""


class LogSources:
    """Opens the logs of a backend's jobs."""

    def __init__(self, backend: JobBackend) -> None:
        self._backend = backend
        self._copies: dict[tuple[str, str], _LogCopy] = {}
        self._followed: list[_JobLogs] = []

    async def read_window(
        self, name: str, replicas: Sequence[str], first: int, count: int
    ) -> LogBatch:
        """Return up to ``count`` lines from the index ``first`` on."""
        state = await (await self._find_logs(name)).read_state()
        with state.open_index(replicas) as index:
            return _read_batch(state.job, index, index.find_cursor(max(index.begin, first)), count)

    async def open_index(self, name: str, replicas: Sequence[str] = ()) -> MergedLogIndex:
        """Return the index of these replicas' logs (default: all), which the caller closes."""
        return (await (await self._find_logs(name)).read_state()).open_index(replicas)

    async def _find_logs(self, name: str) -> _JobLogs:
        if isinstance(self._backend, LocalLogBackend):
            return _LocalLogs(self._backend, name)
        key = name, _identify_job(await self._backend.view(name))
        if key not in self._copies:
            self._remove_copies()
            self._copies[key] = _LogCopy(self._backend, *key)
        return self._copies[key]

    def _remove_copies(self) -> None:
        """Make room for another copy by removing the oldest of those that no page follows."""
        for key, copy in list(self._copies.items()):
            if len(self._copies) >= _MAX_COPIES and copy not in self._followed:
                self._copies.pop(key).close()

    async def follow(
        self, name: str, replicas: Sequence[str], job: str, cursor: Cursor | None
    ) -> AsyncGenerator[LogBatch, None]:
        """Yield new lines as they come, from the ``cursor`` of a batch of ``job`` on.

        Without one, or if another job has this name now, the last lines come first. Ends when the
        job has finished and all its lines were yielded.
        """
        self._forget_failed_copies()
        logs = await self._find_logs(name)
        self._followed.append(logs)
        try:
            async with aclosing(_follow_logs(logs, replicas, job, cursor)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self._followed.remove(logs)

    def _forget_failed_copies(self) -> None:
        for key, copy in list(self._copies.items()):
            if copy.error is not None:
                self._copies.pop(key).close()

    def close(self) -> None:
        """Remove the copies."""
        for copy in self._copies.values():
            copy.close()
        self._copies.clear()


async def _follow_logs(
    logs: _JobLogs, replicas: Sequence[str], job: str, cursor: Cursor | None
) -> AsyncGenerator[LogBatch, None]:
    before: Sequence[Hashable] | None = None
    while True:
        state = await logs.read_state()
        if state.job != job:
            job, cursor, before = state.job, None, None
        stamps = state.read_stamps(replicas)
        if stamps != before or state.is_complete:
            is_first = cursor is None
            with state.open_index(replicas) as index:
                batch = _read_batch(job, index, _catch_up(index, cursor), _BATCH_LINES)
                cursor = batch.cursor
                is_read = index.is_settled and index.count_until(cursor) >= index.end
            before = stamps if is_read else None
            if batch.lines or is_first:
                yield batch
            if state.is_complete and is_read:
                break
        await asyncio.sleep(_POLL_SECONDS)
    if state.error is not None:
        raise state.error


def _catch_up(index: MergedLogIndex, cursor: Cursor | None) -> Cursor:
    """Return the cursor, or, if it is far behind, one near the end."""
    if cursor is not None and index.end - index.count_until(cursor) <= _MAX_LAG_LINES:
        return cursor
    return index.find_cursor(max(index.begin, index.end - _CATCH_UP_LINES))


def _read_batch(job: str, index: MergedLogIndex, cursor: Cursor, count: int) -> LogBatch:
    first, lines = index.count_until(cursor), index.read(cursor, count)
    return LogBatch(job, first, index.begin, index.end, tuple(lines), advance_cursor(cursor, lines))


def _identify_job(view: JobView) -> str:
    """Return a word that differs between jobs of one name."""
    return f"{view.created.timestamp():.6f}" if view.created else "0"


def _read_stamp(directory: Path, replica: ReplicaId) -> Hashable:
    try:
        status = log_file(directory, replica).stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size


class _LocalLogs:
    """The logs of a job of this machine, in the files that its supervisor writes."""

    def __init__(self, backend: LocalLogBackend, name: str) -> None:
        self._backend = backend
        self._name = name

    async def read_state(self) -> _LogState:
        """Return the present state; :class:`UsageError` if the job does not exist any more."""
        view = await self._backend.view(self._name)
        # Before the list of replicas is made: those that are not in it write later lines.
        until = None if view.finished else time.time_ns() // 1000 - _SETTLE_MICROS
        directory = self._backend.log_directory(self._name)
        logged = self._backend.list_logged_replicas(self._name)
        return _LogState(_identify_job(view), directory, logged, view.finished, until)


class _LogCopy:
    """Copies the log lines of one job to files."""

    def __init__(self, backend: JobBackend, name: str, job: str) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="danlu-ui-")
        self._directory = Path(self._temporary.name)
        self._job = job
        self._is_complete = False
        self.error: DanluError | None = None
        self._writers: dict[ReplicaId, LogWriter] = {}
        self._last = 0
        self._task = asyncio.create_task(self._copy_lines(backend, name))

    async def read_state(self) -> _LogState:
        """Return the present state."""
        replicas = list(self._writers)
        return _LogState(self._job, self._directory, replicas, self._is_complete, error=self.error)

    async def _copy_lines(self, backend: JobBackend, name: str) -> None:
        try:
            async for line in backend.logs(name, follow=True):
                self._write_line(line)
                await asyncio.sleep(0)
        except DanluError as error:
            self.error = error
        self._is_complete = True

    def _write_line(self, line: LogLine) -> None:
        if line.replica not in self._writers:
            path = log_file(self._directory, line.replica)
            writer = LogWriter(path, limit=_LOG_BYTES, keep=_LOG_FILES)
            self._writers[line.replica] = writer
        # In the order in which they come: clocks of nodes differ, and an index must not change.
        self._last = max(self._last + 1, round(line.time.timestamp() * 1_000_000))
        self._writers[line.replica].append_records(format_record(line, self._last))

    def close(self) -> None:
        """Stop copying and remove the files."""
        self._task.cancel()
        for writer in self._writers.values():
            writer.close()
        self._temporary.cleanup()
