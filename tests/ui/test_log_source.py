"""The lines of a log as they come: each once, in one order, and those of one job only."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from pathlib import Path

import anyio
import pytest

from danlu.errors import OutsideError
from danlu.jobs.local.log_files import LogWriter, log_file
from danlu.jobs.types import JobView, LogLine
from danlu.training.types import ConditionType, ReplicaId
from danlu.ui.log_source import LogBatch, LogSources
from tests.jobs.local.support import worker
from tests.sweeps.sweep_jobs import LEADER, NOW
from tests.ui.recorded_jobs import RecordedJobs, recorded_view

pytestmark = pytest.mark.anyio


class LoggedJobs(RecordedJobs):
    """A running job ``run`` whose logs a test writes."""

    def __init__(self, directory: Path) -> None:
        super().__init__([recorded_view("run", {}, state=ConditionType.RUNNING)])
        self.directory = directory
        self.replicas: list[ReplicaId] = []

    def log_directory(self, name: str) -> Path:
        return self.directory

    def list_logged_replicas(self, name: str) -> list[ReplicaId]:
        return self.replicas

    @contextmanager
    def start_replica(self, index: int) -> Iterator[LogWriter]:
        self.replicas.append(worker(index))
        path = log_file(self.directory, worker(index))
        writer = LogWriter(path, limit=1 << 20, keep=1)
        yield writer
        writer.close()


async def read_lines(
    jobs: LoggedJobs, count: int, after: LogBatch | None = None
) -> tuple[list[LogLine], LogBatch]:
    """The next lines, ``count`` at least, whose indexes follow each other, and the last batch."""
    lines: list[LogLine] = []
    job, cursor = (after.job, after.cursor) if after else ("", None)
    begin = after.first + len(after.lines) if after else 0
    with anyio.fail_after(60):
        async with aclosing(LogSources(jobs).follow("run", (), job, cursor)) as batches:
            async for batch in batches:
                assert batch.first == begin + len(lines)
                lines += batch.lines
                if len(lines) >= count:
                    return lines, batch
    raise AssertionError("the job has ended")


async def test_replica_that_starts_late_repeats_no_line(tmp_path: Path) -> None:
    jobs = LoggedJobs(tmp_path)
    written = [b"%d" % number for number in range(50)]
    with jobs.start_replica(0) as first:
        first.write(written, attempt=0)
        before, last = await read_lines(jobs, 50)
        with jobs.start_replica(1) as second:
            second.write([b"late"], attempt=0)
            after, _ = await read_lines(jobs, 1, last)
    assert [line.data for line in before + after] == [*written, b"late"]


async def test_lines_from_the_future_are_shown(tmp_path: Path) -> None:
    jobs = LoggedJobs(tmp_path)
    with jobs.start_replica(0) as first, jobs.start_replica(1) as second:
        first.append_records(b"0 0 %d W ahead\n" % ((time.time_ns() // 1000) + 3_600_000_000))
        second.write([b"now"], attempt=0)
        lines, _ = await read_lines(jobs, 2)
    assert {line.data for line in lines} == {b"ahead", b"now"}


class BrokenStreams(RecordedJobs):
    """A running job of a cluster, whose log breaks off after a line."""

    def __init__(self) -> None:
        super().__init__([recorded_view("run", {}, state=ConditionType.RUNNING)])

    async def logs(self, name: str, **options: object) -> AsyncIterator[LogLine]:
        yield LogLine(LEADER, 0, 0, NOW, b"line")
        raise OutsideError("the API server closed the stream")


async def test_log_of_a_cluster_that_breaks_off_says_why() -> None:
    sources = LogSources(BrokenStreams())
    lines: list[LogLine] = []

    async def read_all() -> None:
        async for batch in sources.follow("run", (), "", None):
            lines.extend(batch.lines)

    fails = pytest.raises(OutsideError, match="closed the stream")
    with closing(sources), anyio.fail_after(60), fails:
        await read_all()
    assert [line.data for line in lines] == [b"line"]


class WaitingStreams(RecordedJobs):
    """Running jobs of a cluster, whose logs go on when ``proceed`` is set."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(recorded_view(name, {}, state=ConditionType.RUNNING) for name in names)
        self.proceed = anyio.Event()
        self.asked: list[str] = []

    async def view(self, name: str) -> JobView:
        self.asked.append(name)
        return await super().view(name)

    async def logs(self, name: str, **options: object) -> AsyncIterator[LogLine]:
        yield LogLine(LEADER, 0, 0, NOW, b"early")
        await self.proceed.wait()
        yield LogLine(LEADER, 0, 1, NOW, b"late")


async def test_many_followed_logs_of_a_cluster_go_on_without_asking_it_again() -> None:
    names = [f"job-{number}" for number in range(10)]
    jobs = WaitingStreams(names)
    shown: dict[str, list[bytes]] = {name: [] for name in names}

    async def follow(name: str) -> None:
        async for batch in sources.follow(name, (), "", None):
            shown[name] += [line.data for line in batch.lines]
            if all(shown.values()):
                jobs.proceed.set()

    with closing(LogSources(jobs)) as sources, anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(follow, name)
    assert list(shown.values()) == [[b"early", b"late"]] * len(names)
    assert sorted(jobs.asked) == sorted(names)
