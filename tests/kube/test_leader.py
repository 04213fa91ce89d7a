"""Leader election by a Lease: takeover in time, never two leaders."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from danlu.kube.client import Client
from danlu.kube.leader import LeaderElection, LeadershipLost
from danlu.kube.resources import LEASES
from tests.fakes.kubernetes import ApiFault, FakeKubernetes, VirtualClock
from tests.fakes.kubernetes.clock import finish_requests

pytestmark = pytest.mark.anyio


class LeaderCandidate:
    def __init__(self, client: Client, identity: str) -> None:
        self.election = LeaderElection(
            client, name="operator", namespace="default", identity=identity, draw=lambda: 0.0
        )
        self.began = 0
        self.lost = False
        self.stop = anyio.Event()

    async def record_leadership(self) -> None:
        self.began += 1
        await self.stop.wait()

    async def run(self) -> None:
        try:
            await self.election.run(self.record_leadership)
        except LeadershipLost:
            self.lost = True


@pytest.fixture
def first(virtual_time_client: Client) -> LeaderCandidate:
    return LeaderCandidate(virtual_time_client, "first")


@pytest.fixture
def second(virtual_time_client: Client) -> LeaderCandidate:
    return LeaderCandidate(virtual_time_client, "second")


async def pass_time(clock: VirtualClock, seconds: float) -> None:
    """Second by second, with time for the requests of each."""
    for _ in range(int(seconds)):
        await clock.advance(1.0)
        await finish_requests()


async def lease(client: Client) -> dict[str, Any]:
    spec: dict[str, Any] = (await client.get(LEASES, "operator", namespace="default"))["spec"]
    return spec


async def test_one_of_two_leads_and_gives_back_in_order(
    first: LeaderCandidate,
    second: LeaderCandidate,
    virtual_time_client: Client,
    clock: VirtualClock,
) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(first.run)
        await pass_time(clock, 1)
        group.start_soon(second.run)
        await pass_time(clock, 60)
        assert (first.began, second.began) == (1, 0)
        assert second.election.leader == "first"
        spec = await lease(virtual_time_client)
        assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("first", 0)
        assert spec["leaseDurationSeconds"] == 15
        first.stop.set()
        await pass_time(clock, 3)
        # Not after the lease's duration: it was given back.
        assert second.began == 1
        assert (await lease(virtual_time_client))["leaseTransitions"] == 1
        group.cancel_scope.cancel()
    assert not first.lost


async def test_a_dead_leader_is_replaced_within_the_lease_duration(
    first: LeaderCandidate, second: LeaderCandidate, clock: VirtualClock
) -> None:
    async with anyio.create_task_group() as group:
        async with anyio.create_task_group() as dying:
            dying.start_soon(first.run)
            await pass_time(clock, 5)
            first.election.identity = "killed before it could give back"
            dying.cancel_scope.cancel()
        group.start_soon(second.run)
        await pass_time(clock, 13)
        assert second.began == 0
        await pass_time(clock, 5)
        assert second.began == 1
        group.cancel_scope.cancel()


async def test_a_leader_that_cannot_renew_stops_before_the_lease_expires(
    first: LeaderCandidate, fake: FakeKubernetes, clock: VirtualClock
) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(first.run)
        await pass_time(clock, 5)
        assert first.election.is_leader
        fake.faults.append(ApiFault(resource="leases", times=10_000, status=500))
        await pass_time(clock, 9)
        assert not first.lost
        await pass_time(clock, 5)
        assert first.lost
        assert not first.election.is_leader


async def test_a_moment_without_the_server_costs_nothing(
    first: LeaderCandidate, fake: FakeKubernetes, clock: VirtualClock
) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(first.run)
        await pass_time(clock, 5)
        fake.faults.append(ApiFault(resource="leases", times=3, drop=True))
        await pass_time(clock, 60)
        assert first.election.is_leader
        assert (first.began, first.lost) == (1, False)
        group.cancel_scope.cancel()


async def test_renewing_is_one_request_each_two_seconds(
    first: LeaderCandidate, fake: FakeKubernetes, clock: VirtualClock
) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(first.run)
        await pass_time(clock, 101)
        group.cancel_scope.cancel()
    assert fake.counts["get", "leases"] <= 1
    assert 45 <= fake.counts["update", "leases"] <= 52


async def test_a_clock_that_jumps_changes_nothing(
    first: LeaderCandidate, second: LeaderCandidate, clock: VirtualClock
) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(first.run)
        await pass_time(clock, 3)
        group.start_soon(second.run)
        for jump in (86400, -2 * 86400):
            clock.jump(jump)
            await pass_time(clock, 20)
        assert (first.began, second.began, first.lost) == (1, 0, False)
        group.cancel_scope.cancel()


async def test_a_lease_taken_by_another_candidate_is_lost(
    first: LeaderCandidate, kube: Client, clock: VirtualClock
) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(first.run)
        await pass_time(clock, 3)
        taken = await kube.get(LEASES, "operator", namespace="default")
        taken["spec"]["holderIdentity"] = "thief"
        await kube.update(LEASES, taken)
        await pass_time(clock, 15)
        assert first.lost
    assert (await lease(kube))["holderIdentity"] == "thief"


@pytest.mark.parametrize(("duration", "renew", "retry"), [(10, 10, 2), (15, 2.2, 2)])
async def test_times_that_cannot_work_are_refused(
    virtual_time_client: Client, duration: float, renew: float, retry: float
) -> None:
    with pytest.raises(ValueError, match="must hold"):
        LeaderElection(
            virtual_time_client,
            name="x",
            namespace="default",
            identity="x",
            duration=duration,
            renew=renew,
            retry=retry,
        )
