"""Progress that several processes of the operator hear: one speaker counts, and time goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import anyio
import msgspec
import pytest

from danlu.kube.client import Client
from danlu.kube.failures import NotFound
from danlu.kube.resources import CONFIG_MAPS
from danlu.kube.types import Key
from danlu.operator.reports.keeping import Keeper
from danlu.operator.reports.maps import Reporter
from danlu.operator.reports.told import Speaker, Told
from danlu.training.progress import Progress
from tests.operator.site import Site

pytestmark = pytest.mark.anyio

START = datetime(2026, 1, 1, tzinfo=UTC)
LEADER, FIRST, SECOND = (
    Speaker.of("leader", "master-0"),
    Speaker.of("replicas", "worker-0"),
    Speaker.of("replicas", "worker-1"),
)


def told(speaker: Speaker, percentage: int, *, after: float = 0) -> Told:
    updated = START + timedelta(seconds=after)
    return Told.of(speaker, Progress(percentage=percentage, updated=updated))


@pytest.fixture
async def reporter(site: Site) -> Reporter:
    job = await site.submit(Worker=2)
    return Reporter("PyTorchJob", Key(site.space, "job"), job["metadata"]["uid"])


@asynccontextmanager
async def two(site: Site) -> AsyncIterator[tuple[Keeper, Keeper]]:
    async with (
        Client(site.access, clock=site.clock) as client,
        anyio.create_task_group() as group,
    ):
        keepers = Keeper(client), Keeper(client)
        for one in keepers:
            group.start_soon(one.run)
        await anyio.wait_all_tasks_blocked()
        yield keepers
        group.cancel_scope.cancel()


async def kept(site: Site) -> int | None:
    try:
        found = await site.client.get(CONFIG_MAPS, "job-reports", namespace=site.space)
    except NotFound:
        return None
    return msgspec.json.decode(found["data"]["progress"], type=Progress).percentage


async def until(site: Site, percentage: int) -> None:
    async def there() -> bool:
        return await kept(site) == percentage

    await site.eventually(there)


@pytest.mark.parametrize(("counts", "other"), [(LEADER, FIRST), (FIRST, SECOND)])
async def test_one_speaker_counts_for_all_processes(
    site: Site, reporter: Reporter, counts: Speaker, other: Speaker
) -> None:
    async with two(site) as (a, b):
        b.progress(reporter, told(other, 1))
        await until(site, 1)
        a.progress(reporter, told(counts, 2))
        await until(site, 2)
        for number in range(3, 6):
            b.progress(reporter, told(other, 90 + number, after=number))
            await site.pass_time(1.5)
            assert await kept(site) == number - 1
            a.progress(reporter, told(counts, number, after=number))
            await until(site, number)


async def test_what_was_told_before_does_not_take_the_place_of_what_is_newer(
    site: Site, reporter: Reporter
) -> None:
    async with two(site) as (a, b):
        a.progress(reporter, told(LEADER, 10))
        await until(site, 10)
        # In its pause, so that it writes last what it heard first.
        a.progress(reporter, told(LEADER, 50, after=1))
        b.progress(reporter, told(LEADER, 100, after=2))
        await until(site, 100)
        await site.pass_time(3.0)
        assert await kept(site) == 100


async def test_who_alone_writes_asks_for_nothing_else(site: Site, reporter: Reporter) -> None:
    if site.fake is None:
        pytest.skip("requests are counted on the fake")
    log = site.fake.log
    expected: list[str] = []

    def asked() -> list[str]:
        return [one.verb for one in log if one.resource == "configmaps"]

    async def all_asked() -> bool:
        return len(asked()) >= len(expected)

    async with two(site) as (a, _):
        for number in range(4):
            a.progress(reporter, told(LEADER, number))
            expected += ["patch"] if number else ["get", "create"]
            await site.eventually(all_asked)
    assert asked() == expected


async def test_a_replica_whose_clock_was_set_back_is_heard_again(
    site: Site, reporter: Reporter
) -> None:
    async with two(site) as (a, _):
        a.progress(reporter, told(LEADER, 10, after=1000))
        await until(site, 10)
        a.progress(reporter, told(LEADER, 11))
        await until(site, 11)


@pytest.mark.parametrize("speaker", [LEADER, SECOND, Speaker.of(None, None)])
def test_speakers_are_read_as_they_are_written(speaker: Speaker) -> None:
    assert Speaker.read(str(speaker)) == speaker
    assert Told.read(told(speaker, 7).data()) == told(speaker, 7)


@pytest.mark.parametrize(
    "data", [{}, {"progress": "{}"}, {"progress": "x", "speaker": "leader/master-0"}]
)
def test_what_cannot_be_read_is_nothing(data: dict[str, str]) -> None:
    assert Told.read(data) is None
