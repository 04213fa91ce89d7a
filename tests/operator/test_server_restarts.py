"""A real API server that restarts in the middle of work, while etcd keeps running."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from danlu.kube.client import Client
from danlu.kube.leader import LeaderElection, LeadershipLost
from danlu.kube.resources import EVENTS
from danlu.kube.watch import ListOptions
from danlu.operator.setup import build_manager
from tests.fakes.kubernetes import FakeKubelet
from tests.fakes.kubernetes.container_logs import ContainerLogs
from tests.fakes.kubernetes.pod_script import PodScript, SimulatedPod
from tests.kube.servers import ApiServer, real_server
from tests.operator.operator_namespace import OperatorNamespace, jobs, settings
from tests.operator.permissions import grant

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(300)]
JOBS = 60
NAMES = {f"job-{n}-worker-{index}" for n in range(JOBS) for index in range(3)}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    """A server for one test, because it is stopped."""
    # So long it waits for watches to end, of which none ends by itself, when it is to end.
    options = ["--request-timeout=8s"]
    with real_server(tmp_path, controllers=False, options=options) as server:
        yield server


@dataclass
class DeployedOperator:
    """An operator that is one of several, and is started again when it had to end."""

    site: OperatorNamespace
    name: str
    starts: int = 0
    #: When a request got no answer at all.
    unanswered: list[float] = field(default_factory=list)
    election: LeaderElection | None = None

    @property
    def leads(self) -> bool:
        """Whether it is the leader."""
        return self.election is not None and self.election.is_leader

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self.starts += 1
            try:
                await self._run_manager()
            except* LeadershipLost:
                # As a kubelet does after a first failure; the next one waits longer.
                await anyio.sleep(1.0)

    async def _run_manager(self) -> None:
        expected = settings(self.site.space, kinds=("PyTorchJob",))
        async with Client(
            self.site.operator, meter=self._count_response, manager=self.name
        ) as client:
            self.election = LeaderElection(
                client,
                name=expected.lease_name,
                namespace=self.site.space,
                identity=f"{self.name}-{self.starts}",
            )
            await build_manager(client, expected, election=self.election).run()

    def _count_response(self, method: str, code: int, seconds: float) -> None:
        if code == 0:
            self.unanswered.append(anyio.current_time())


@asynccontextmanager
async def run_two_operators(site: OperatorNamespace) -> AsyncIterator[list[DeployedOperator]]:
    """Two operators, of which one leads, with the rights that their manifests give."""
    expected = settings(site.space, leader_elect=True)
    async with Client(site.operator) as operator:
        await grant(site.client, operator, expected)
    both = [DeployedOperator(site, "one"), DeployedOperator(site, "two")]
    async with anyio.create_task_group() as group:
        for item in both:
            group.start_soon(item.run)
        yield both
        group.cancel_scope.cancel()


async def count_succeeded_jobs(site: OperatorNamespace) -> int:
    """Return the number of succeeded jobs."""
    result = (await site.client.list(jobs("PyTorchJob"), ListOptions(site.space))).items
    conditions = [(obj.get("status") or {}).get("conditions") or [{}] for obj in result]
    return sum(condition[-1].get("type") == "Succeeded" for condition in conditions)


@pytest.mark.parametrize(
    ("how", "seconds"), [(signal.SIGKILL, 20.0), (signal.SIGTERM, 0.0)], ids=["killed", "restarted"]
)
async def test_a_server_restart_in_the_middle_of_sixty_jobs_loses_none_of_them(
    server: ApiServer, site: OperatorNamespace, how: signal.Signals, seconds: float
) -> None:
    def course(pod: SimulatedPod) -> PodScript:
        return PodScript(run=3.0)

    async def all_pods_exist() -> bool:
        return len(await site.pods()) >= JOBS

    async def done() -> bool:
        assert sum(operator.leads for operator in operators) <= 1
        return await count_succeeded_jobs(site) == JOBS

    kubelet = FakeKubelet(site.access, behaviour=course, logs=ContainerLogs())
    async with kubelet, run_two_operators(site) as operators:
        for number in range(JOBS):
            kept = {"cleanPodPolicy": "None"}
            await site.submit("PyTorchJob", f"job-{number}", run=kept, Worker=3)
        await site.eventually(all_pods_exist)
        assert await count_succeeded_jobs(site) < JOBS
        gone = anyio.current_time()
        await anyio.to_thread.run_sync(server.end, "apiserver", how)
        await anyio.sleep(seconds)
        away = anyio.current_time() - gone
        tries = [[at - gone for at in operator.unanswered if at >= gone] for operator in operators]
        await anyio.to_thread.run_sync(server.begin, "apiserver")
        await site.eventually(done, seconds=120)
        await check_no_duplicates(site)
        for attempt in tries:
            check_no_haste(attempt, away)
        # Each has lost the lease once, or come to wait for it.
        assert sum(operator.leads for operator in operators) == 1
        assert all(operator.starts <= 2 for operator in operators)


async def check_no_duplicates(site: OperatorNamespace) -> None:
    """Check that each job had its pods once, and one event about its end."""
    assert {*await site.pods()} == {*await site.services()} == NAMES
    for number in range(JOBS):
        records = (await site.status(name=f"job-{number}"))["records"]
        assert not any(record.get("restarts") for record in records.values())
    # One may be missing, of an end that was written without an answer by who then had to end.
    events = [
        event for event in await site.all_of(EVENTS) if event["reason"] == "PyTorchJobSucceeded"
    ]
    names = [event["involvedObject"]["name"] for event in events]
    assert sorted(names) == sorted({*names})
    assert {event["count"] for event in events} == {1}


def check_no_haste(tries: list[float], seconds: float) -> None:
    """Check the rate limits: a burst of 100 keys, then 10 a second, then growing delays."""
    for second in range(int(seconds)):
        # Two pods, each with its Service, are begun with in each try.
        assert sum(second <= at < second + 1 for at in tries) <= (250 if second == 0 else 50)
    assert len(tries) <= 200 + 20 * seconds
    if seconds > 15:
        assert sum(at >= seconds - 5 for at in tries) <= 20
