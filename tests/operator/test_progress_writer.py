"""Progress received by several processes of the operator: one source counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import anyio
import msgspec
import pytest

from danlu.kube.client import Client
from danlu.kube.errors import NotFound
from danlu.kube.resources import CONFIG_MAPS
from danlu.kube.types import Key
from danlu.operator.progress.report import ProgressReport, ReportSource
from danlu.operator.progress.writer import ReportingJob, ReportWriter
from danlu.training.progress import TrainingProgress
from tests.operator.operator_namespace import OperatorNamespace, jobs

pytestmark = pytest.mark.anyio

START = datetime(2026, 1, 1, tzinfo=UTC)
LEADER, FIRST, SECOND = (
    ReportSource.from_path("leader", "master-0"),
    ReportSource.from_path("replicas", "worker-0"),
    ReportSource.from_path("replicas", "worker-1"),
)


def make_report(speaker: ReportSource, percentage: int, *, after: float = 0) -> ProgressReport:
    updated = START + timedelta(seconds=after)
    return ProgressReport.from_progress(
        speaker, TrainingProgress(percentage=percentage, updated=updated)
    )


@pytest.fixture
async def reporter(site: OperatorNamespace) -> ReportingJob:
    job = await site.submit(Worker=2)
    return ReportingJob(jobs("PyTorchJob"), Key(site.space, "job"), job["metadata"]["uid"])


@asynccontextmanager
async def two(site: OperatorNamespace) -> AsyncIterator[tuple[ReportWriter, ReportWriter]]:
    async with (
        Client(site.access, clock=site.clock) as client,
        anyio.create_task_group() as group,
    ):
        keepers = ReportWriter(client), ReportWriter(client)
        for writer in keepers:
            group.start_soon(writer.run)
        await anyio.wait_all_tasks_blocked()
        yield keepers
        group.cancel_scope.cancel()


async def read_percentage(site: OperatorNamespace) -> int | None:
    try:
        result = await site.client.get(CONFIG_MAPS, "job-reports", namespace=site.space)
    except NotFound:
        return None
    return msgspec.json.decode(result["data"]["progress"], type=TrainingProgress).percentage


async def until(site: OperatorNamespace, percentage: int) -> None:
    async def there() -> bool:
        return await read_percentage(site) == percentage

    await site.eventually(there)


@pytest.mark.parametrize(("counts", "other"), [(LEADER, FIRST), (FIRST, SECOND)])
async def test_one_speaker_counts_for_all_processes(
    site: OperatorNamespace, reporter: ReportingJob, counts: ReportSource, other: ReportSource
) -> None:
    async with two(site) as (a, b):
        b.submit_progress(reporter, make_report(other, 1))
        await until(site, 1)
        a.submit_progress(reporter, make_report(counts, 2))
        await until(site, 2)
        for number in range(3, 6):
            b.submit_progress(reporter, make_report(other, 90 + number, after=number))
            await site.pass_time(1.5)
            assert await read_percentage(site) == number - 1
            a.submit_progress(reporter, make_report(counts, number, after=number))
            await until(site, number)


async def test_an_older_report_does_not_replace_a_newer_one(
    site: OperatorNamespace, reporter: ReportingJob
) -> None:
    async with two(site) as (a, b):
        a.submit_progress(reporter, make_report(LEADER, 10))
        await until(site, 10)
        # In its pause, so that it writes last what it heard first.
        a.submit_progress(reporter, make_report(LEADER, 50, after=1))
        b.submit_progress(reporter, make_report(LEADER, 100, after=2))
        await until(site, 100)
        await site.pass_time(3.0)
        assert await read_percentage(site) == 100


async def test_a_single_writer_needs_one_request_per_report(
    site: OperatorNamespace, reporter: ReportingJob
) -> None:
    if site.fake is None:
        pytest.skip("requests are counted on the fake")
    log = site.fake.log
    expected: list[str] = []

    def list_verbs() -> list[str]:
        return [request.verb for request in log if request.resource == "configmaps"]

    async def all_requests_are_made() -> bool:
        return len(list_verbs()) >= len(expected)

    async with two(site) as (a, _):
        for number in range(4):
            a.submit_progress(reporter, make_report(LEADER, number))
            expected += ["patch"] if number else ["get", "create"]
            await site.eventually(all_requests_are_made)
    assert list_verbs() == expected


async def test_reports_of_a_replica_whose_clock_was_set_back_are_accepted(
    site: OperatorNamespace, reporter: ReportingJob
) -> None:
    async with two(site) as (a, _):
        a.submit_progress(reporter, make_report(LEADER, 10, after=1000))
        await until(site, 10)
        a.submit_progress(reporter, make_report(LEADER, 11))
        await until(site, 11)


@pytest.mark.parametrize("speaker", [LEADER, SECOND, ReportSource.from_path(None, None)])
def test_speakers_are_read_as_they_are_written(speaker: ReportSource) -> None:
    assert ReportSource.parse(str(speaker)) == speaker
    assert ProgressReport.from_data(make_report(speaker, 7).to_data()) == make_report(speaker, 7)


@pytest.mark.parametrize(
    "data", [{}, {"progress": "{}"}, {"progress": "x", "speaker": "leader/master-0"}]
)
def test_an_invalid_stored_report_is_ignored(data: dict[str, str]) -> None:
    assert ProgressReport.from_data(data) is None
