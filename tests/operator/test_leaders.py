"""Two operators: one leads, the other takes over, and nothing is done twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest

from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from danlu.kube.errors import ConnectionLost
from danlu.kube.leader import LeaderElection, LeadershipLost
from danlu.kube.resources import EVENTS, PODS, SERVICES
from danlu.kube.transport import ApiRequest
from danlu.kube.types import WatchEvent
from danlu.operator.setup import build_manager
from tests.fakes.kubernetes import ApiFault
from tests.kube.servers import TOKEN
from tests.operator.operator_namespace import OperatorNamespace, settings

pytestmark = pytest.mark.anyio
LEASE = 15.0
RUN = """
import sys, anyio
from danlu.kube.config import ClusterConfig, StaticCredentials
from danlu.operator.setup import run_operator
from danlu.operator.types import OperatorSettings
server, namespace, elect, token = sys.argv[1:]
ca = sys.stdin.buffer.read()
settings = OperatorSettings(
    kinds=("PyTorchJob",), namespace=namespace, metrics_address="", health_address="",
    leader_elect=bool(elect), lease_namespace=namespace,
)
config = ClusterConfig(server=server, credentials=StaticCredentials(token=token), ca=ca)
anyio.run(run_operator, config, settings)
"""


@pytest.fixture
def site(fake_site: OperatorNamespace) -> OperatorNamespace:
    return fake_site


class OperatorCandidate:
    """An operator that can be cut off from the server."""

    def __init__(self, site: OperatorNamespace, name: str) -> None:
        self.client = Client(site.operator, clock=site.clock, manager=name)
        self.election = LeaderElection(
            self.client, name="operators", namespace=site.space, identity=name
        )
        self.manager = build_manager(
            self.client, settings(site.space, kinds=("PyTorchJob",)), election=self.election
        )
        self.lost = False

    async def run(self) -> None:
        try:
            await self.manager.run()
        except* LeadershipLost:
            self.lost = True

    def cut(self) -> None:
        """Cut its connection to the server from now on."""

        async def refuse_connections(request: ApiRequest) -> bytes:
            raise ConnectionLost("the cable is out")

        self.client.transport.send = refuse_connections  # type: ignore[method-assign]

    def hold_back_pods(self) -> Callable[[], None]:
        """Delay its pod events until the returned function is called, like a slow watch."""
        (informer,) = [
            informer for (name, _), informer in self.manager._informers.items() if name == "pods"
        ]
        tell: Callable[[WatchEvent[Any]], None] = informer._apply_event
        late: list[WatchEvent[Any]] = []
        informer._apply_event = late.append  # type: ignore

        def let_go() -> None:
            informer._apply_event = tell  # type: ignore
            for event in late:
                tell(event)

        return let_go


@asynccontextmanager
async def candidates(
    site: OperatorNamespace,
) -> AsyncIterator[tuple[OperatorCandidate, OperatorCandidate]]:
    """Two operators, the first of which leads."""
    first, second = OperatorCandidate(site, "one"), OperatorCandidate(site, "two")

    async def leads() -> bool:
        return first.election.is_leader

    async with first.client, second.client, anyio.create_task_group() as group:
        group.start_soon(first.run)
        await site.eventually(leads)
        group.start_soon(second.run)
        yield first, second
        first.manager.stop()
        second.manager.stop()


async def test_only_the_leader_acts(site: OperatorNamespace) -> None:
    async with candidates(site) as (_, second):
        await site.submit("PyTorchJob", Worker=2)
        await site.wait_for_pods("job-worker-0", "job-worker-1")
        assert not second.election.is_leader
        assert site.fake is not None
        assert site.fake.counts["create", "pods"] == 2


async def test_another_takes_over_within_the_lease_and_nothing_is_doubled(
    site: OperatorNamespace,
) -> None:
    async with candidates(site) as (first, second):
        await site.submit("PyTorchJob", Master=1, Worker=2)
        await site.wait_for_pods("job-master-0", "job-worker-0", "job-worker-1")
        await site.run()
        await site.wait_for_state("Running")
        uids = {name: await site.uid(name) for name in await site.pods()}
        first.cut()
        begun = site.clock.monotonic()

        async def second_leads() -> bool:
            assert not (first.election.is_leader and second.election.is_leader)
            return second.election.is_leader

        await site.eventually(second_leads)
        # The lease, and the pause between two looks at it.
        assert site.clock.monotonic() - begun <= LEASE + 2 * 2.2 + 1
        assert first.lost
        await site.end("job-worker-0")
        await site.end("job-master-0")
        await site.wait_for_state("Succeeded")
        assert {name: await site.uid(name) for name in await site.pods()} == uids
        await site.wait_for_event("PyTorchJobSucceeded")
        assert len(await site.messages("PyTorchJobSucceeded")) == 1
        assert len(await site.messages("SuccessfulCreatePod")) == 1


async def test_a_leader_that_is_stopped_sends_its_events_before_it_hands_over(
    site: OperatorNamespace,
) -> None:
    assert site.fake is not None
    site.fake.faults.append(ApiFault(verb="create", resource="events", delay=0.05, times=100))
    async with candidates(site) as (first, second):
        for number in range(5):
            await site.submit("PyTorchJob", f"job-{number}", Worker=1)
        await site.wait_for_pods(*(f"job-{number}-worker-0" for number in range(5)))
        first.manager.stop()

        async def second_leads() -> bool:
            return second.election.is_leader

        await site.eventually(second_leads)
        assert len(await site.messages("SuccessfulCreatePod")) == 5


async def test_a_stopped_leader_releases_its_lease(site: OperatorNamespace) -> None:
    async with candidates(site) as (first, second):
        begun = site.clock.monotonic()
        first.manager.stop()

        async def second_leads() -> bool:
            return second.election.is_leader

        await site.eventually(second_leads)
        assert site.clock.monotonic() - begun < LEASE / 2
        await site.submit("PyTorchJob", Worker=1)
        await site.wait_for_pods("job-worker-0")


async def test_a_successor_that_does_not_see_the_pods_yet_does_not_take_them_for_lost(
    site: OperatorNamespace,
) -> None:
    async with candidates(site) as (first, second):

        async def second_is_ready() -> bool:
            return not second.manager.unready_reason

        await site.eventually(second_is_ready)
        let_go = second.hold_back_pods()
        await site.submit("PyTorchJob", Worker=2)
        await site.wait_for_pods("job-worker-0", "job-worker-1")

        async def records_are_complete() -> bool:
            records = (await site.status()).get("records", {})
            return len([record for record in records.values() if record.get("current")]) == 2

        await site.eventually(records_are_complete)
        uids = [await site.uid(name) for name in ("job-worker-0", "job-worker-1")]
        first.manager.stop()

        async def second_leads() -> bool:
            return second.election.is_leader

        await site.eventually(second_leads)
        await site.pass_time(2)
        let_go()
        await site.run()
        await site.wait_for_state("Running")
        assert [await site.uid(name) for name in ("job-worker-0", "job-worker-1")] == uids
        records = (await site.status())["records"].values()
        assert not any(record.get("restarts") for record in records)


# -- processes


@contextmanager
def process(
    access: ClusterConfig, namespace: str, *, elect: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """An operator in a separate process."""
    value = [access.server, namespace, "yes" if elect else "", TOKEN]
    pipe = subprocess.PIPE
    running = subprocess.Popen([sys.executable, "-c", RUN, *value], stdin=pipe, stderr=pipe)
    try:
        assert running.stdin is not None
        running.stdin.write(access.ca)
        running.stdin.close()
        running.stdin = None
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.mark.real
async def test_an_operator_killed_while_it_creates_a_hundred_pods_creates_exactly_those(
    site_in_time: OperatorNamespace,
) -> None:
    site = site_in_time
    if site.fake is not None:
        slowly = ApiFault(verb="create", resource="pods", delay=0.05, times=10_000)
        site.fake.faults.append(slowly)
    await site.submit("PyTorchJob", Worker=100)

    async def has_some_pods() -> bool:
        return len(await site.pods()) >= 10

    with process(site.access, site.space) as first:
        with anyio.fail_after(60):
            while not await has_some_pods():
                await anyio.sleep(0.002)
        first.send_signal(signal.SIGKILL)
        first.wait()
    existing = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await site.all_of(PODS)}
    assert 10 <= len(existing) < 100
    names = [f"job-worker-{index}" for index in range(100)]
    with process(site.access, site.space) as second:
        await site.wait_for_pods(*names)
        await site.wait_for_services(*names)
        for name, uid in existing.items():
            assert await site.uid(name) == uid

        async def records_are_complete() -> bool:
            return len((await site.status()).get("records", {})) == 100

        await site.eventually(records_are_complete)
        assert not any(
            record.get("restarts") for record in (await site.status())["records"].values()
        )
        second.send_signal(signal.SIGTERM)
        second.wait(10)
        assert second.returncode == 0
    # What was under way when the first was killed may have been asked for twice.
    if site.fake is not None:
        assert site.fake.counts["create", "pods"] <= 100 + 64
    assert len(await site.all_of(SERVICES)) == 100
    assert len(await site.all_of(EVENTS)) <= 2


@pytest.mark.real
@pytest.mark.slow
async def test_a_leader_that_is_killed_is_replaced_within_the_lease(
    fake_site_in_time: OperatorNamespace,
) -> None:
    site = fake_site_in_time
    fake = site.fake
    assert fake is not None
    with process(site.operator, site.space, elect=True) as leader:
        await site.submit("PyTorchJob", "one", Worker=1)
        await site.wait_for_pods("one-worker-0")
        watches = fake.watches

        async def is_standby() -> bool:
            return fake.watches == 2 * watches

        with process(site.operator, site.space, elect=True):
            await site.eventually(is_standby)
            leader.kill()
            begun = anyio.current_time()
            await site.submit("PyTorchJob", "two", Worker=1)
            await site.wait_for_pods("one-worker-0", "two-worker-0")
        assert anyio.current_time() - begun <= LEASE + 2 * 2.2 + 2
    assert fake.counts["create", "pods"] == 2
