"""The manager: order of its start, shared informers, graceful shutdown."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator

import anyio
import pytest

from danlu.errors import MachineError, OutsideError
from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from danlu.kube.controller import Controller, ReconcileResult, Success, map_to_self
from danlu.kube.informer import index_by_label, index_by_owner
from danlu.kube.leader import LeaderElection, LeadershipLost, Lease
from danlu.kube.manager import Manager
from danlu.kube.metrics import (
    MetricsRegistry,
    RequestMetrics,
    register_process_metrics,
    render_metrics,
)
from danlu.kube.resources import CONFIG_MAPS, LEASES, PODS
from danlu.kube.types import Key, Object
from tests.fakes.kubernetes import ApiFault, FakeKubernetes, VirtualClock
from tests.kube.objects import config_map, eventually

pytestmark = pytest.mark.anyio
MAPS = CONFIG_MAPS.with_model(Object)


class RecordingReconciler:
    """A controller of config maps that records its requests."""

    def __init__(self, manager: Manager, name: str = "noted") -> None:
        self.keys: list[str] = []
        self.gate: anyio.Event | None = None
        self.finished: list[str] = []
        informer = manager.get_informer(MAPS)
        self.controller: Controller[Object] = Controller(name, self.reconcile)
        self.controller.watch(
            informer,
            map_to_self,
            predicate=lambda old, new: (new or old).key.namespace == "default",  # type: ignore[union-attr]
        )
        manager.add_controller(self.controller)

    async def reconcile(self, key: Key) -> ReconcileResult:
        self.keys.append(key.name)
        if self.gate is not None:
            await self.gate.wait()
        self.finished.append(key.name)
        return Success()


async def fetch_page(port: int, path: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await anyio.to_thread.run_sync(get)


async def test_many_controllers_share_one_cache(kube: Client, fake: FakeKubernetes) -> None:
    manager = Manager(kube)
    first, second = RecordingReconciler(manager, "one"), RecordingReconciler(manager, "two")
    await kube.create(CONFIG_MAPS, config_map("a", "default"))
    async with anyio.create_task_group() as group:
        group.start_soon(manager.run)
        await eventually(lambda: first.keys == second.keys == ["a"])
        manager.stop()
    assert fake.counts["list", "configmaps"] == 1
    assert fake.counts["watch", "configmaps"] == 1


async def test_a_shared_informer_has_the_indexes_of_all_users(kube: Client) -> None:
    manager = Manager(kube)
    first = manager.get_informer(MAPS, indexes={"owner": index_by_owner})
    assert manager.get_informer(MAPS, indexes={"job": index_by_label("job")}) is first
    assert first.indexer.by_index("job", "x") == []
    with pytest.raises(ValueError, match="already decoded as"):
        manager.get_informer(CONFIG_MAPS.with_model(Lease))
    RecordingReconciler(manager)
    with pytest.raises(ValueError, match="already"):
        RecordingReconciler(manager)


async def test_nothing_is_reconciled_before_caches_are_synced(
    kube: Client, fake: FakeKubernetes
) -> None:
    manager = Manager(kube, health_address="127.0.0.1:0")
    noted = RecordingReconciler(manager)
    manager.get_informer(PODS.with_model(Object))
    await kube.create(CONFIG_MAPS, config_map("a", "default"))
    release = asyncio.Event()
    fake.faults.append(ApiFault(verb="list", resource="pods", release=release))
    async with anyio.create_task_group() as group:
        group.start_soon(manager.run)
        await eventually(lambda: len(noted.controller.queue) == 1)
        code, text = await fetch_page(manager.ports["health"], "/readyz")
        assert (code, text) == (500, "caches not synced: pods\n")
        assert (await fetch_page(manager.ports["health"], "/healthz"))[0] == 200
        assert noted.keys == []
        release.set()
        await eventually(lambda: noted.keys == ["a"])
        assert await fetch_page(manager.ports["health"], "/readyz") == (200, "ok")
        manager.stop()


async def test_caches_that_do_not_sync_are_named(fake: FakeKubernetes, clock: VirtualClock) -> None:
    fake.faults.append(ApiFault(verb="list", resource="configmaps", times=1000, status=403))
    async with Client(ClusterConfig(server=fake.url), clock=clock) as client:
        manager = Manager(client, sync_seconds=60)
        RecordingReconciler(manager)

        async def wait() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(manager.run)
                for _ in range(70):
                    await clock.advance(1)
                    await anyio.sleep(0.002)

        with pytest.raises(BaseExceptionGroup) as caught:
            await wait()
        assert caught.group_contains(OutsideError, match="caches not synced: configmaps after 60 s")


async def test_a_manager_waiting_for_cache_sync_can_be_stopped(
    kube: Client, fake: FakeKubernetes
) -> None:
    fake.faults.append(ApiFault(verb="list", resource="configmaps", times=1000, status=403))
    manager = Manager(kube)
    noted = RecordingReconciler(manager)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(manager.run)
            await eventually(lambda: bool(fake.counts["list", "configmaps"]))
            manager.stop()
    assert noted.keys == []


async def test_stopping_finishes_running_reconciliations(kube: Client) -> None:
    manager = Manager(kube)
    noted = RecordingReconciler(manager)
    noted.gate = anyio.Event()
    for name in ("a", "b"):
        await kube.create(CONFIG_MAPS, config_map(name, "default"))
    async with anyio.create_task_group() as group:
        group.start_soon(manager.run)
        await eventually(lambda: noted.keys == ["a"])
        manager.stop()
        await eventually(lambda: noted.controller.queue.is_shut_down)
        assert noted.finished == []
        noted.gate.set()
    assert noted.finished == ["a", "b"]


async def test_stopping_waits_no_longer_than_its_grace(
    fake: FakeKubernetes, clock: VirtualClock
) -> None:
    async with Client(ClusterConfig(server=fake.url), clock=clock) as client:
        manager = Manager(client, grace=30.0)
        noted = RecordingReconciler(manager)
        noted.gate = anyio.Event()
        await client.create(CONFIG_MAPS, config_map("a", "default"))
        async with anyio.create_task_group() as group:
            group.start_soon(manager.run)
            await eventually(lambda: noted.keys == ["a"])
            manager.stop()
            await eventually(lambda: noted.controller.queue.is_shut_down)
            with anyio.fail_after(60):
                await clock.advance(31.0)
    assert noted.finished == []


@pytest.fixture
async def second(fake: FakeKubernetes) -> AsyncIterator[Client]:
    async with Client(ClusterConfig(server=fake.url), manager="second") as client:
        yield client


def election(client: Client, identity: str, *, renew: float = 30.0) -> LeaderElection:
    return LeaderElection(
        client,
        name="operator",
        namespace="default",
        identity=identity,
        duration=1.5 * renew,
        renew=renew,
        retry=0.1,
    )


async def test_only_the_leader_reconciles_and_the_standby_is_ready(
    kube: Client, second: Client
) -> None:
    await kube.create(CONFIG_MAPS, config_map("a", "default"))
    managers = [
        Manager(client, election=election(client, name), health_address="127.0.0.1:0")
        for client, name in ((kube, "first"), (second, "second"))
    ]
    noted = [RecordingReconciler(manager) for manager in managers]
    async with anyio.create_task_group() as group:
        group.start_soon(managers[0].run)
        await eventually(lambda: noted[0].keys == ["a"])
        group.start_soon(managers[1].run)
        await eventually(lambda: not managers[1].unready_reason)
        assert noted[1].keys == []
        assert 'leader_election_master_status{name="first"} 1' in render_metrics(
            managers[0].metrics
        )
        managers[0].stop()
        await eventually(lambda: noted[1].keys == ["a"])
        managers[1].stop()


async def test_a_manager_waiting_for_leadership_can_be_stopped(
    kube: Client, second: Client
) -> None:
    elected = election(kube, "first")
    leading = Manager(kube, election=elected)
    waiting = Manager(second, election=election(second, "second"))
    async with anyio.create_task_group() as group:
        group.start_soon(leading.run)
        await eventually(lambda: elected.is_leader)
        async with anyio.create_task_group() as other:
            other.start_soon(waiting.run)
            await eventually(lambda: not waiting.unready_reason)
            waiting.stop()
        leading.stop()


async def test_a_leader_that_lost_its_lease_works_no_more(kube: Client, second: Client) -> None:
    manager = Manager(kube, election=election(kube, "first", renew=1.0))
    noted = RecordingReconciler(manager)
    noted.gate = anyio.Event()
    await kube.create(CONFIG_MAPS, config_map("a", "default"))

    async def take_lease() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(manager.run)
            await eventually(lambda: noted.keys == ["a"])
            lease = await second.get(LEASES, "operator", namespace="default")
            lease["spec"]["holderIdentity"] = "thief"
            await second.update(LEASES, lease)

    with anyio.fail_after(60), pytest.raises(BaseExceptionGroup) as caught:
        await take_lease()
    assert caught.group_contains(LeadershipLost)
    assert noted.finished == []


async def test_metrics_have_the_names_of_controller_runtime(fake: FakeKubernetes) -> None:
    metrics = MetricsRegistry()
    register_process_metrics(metrics)
    meter = RequestMetrics(metrics, "cluster:443")
    async with Client(ClusterConfig(server=fake.url), meter=meter) as client:
        manager = Manager(client, metrics=metrics, metrics_address="127.0.0.1:0")
        noted = RecordingReconciler(manager)
        await client.create(CONFIG_MAPS, config_map("a", "default"))
        async with anyio.create_task_group() as group:
            group.start_soon(manager.run)
            await eventually(lambda: noted.finished == ["a"])
            code, text = await fetch_page(manager.ports["metrics"], "/metrics")
            manager.stop()
    assert code == 200
    for line in (
        'controller_runtime_reconcile_total{controller="noted",result="success"} 1',
        'controller_runtime_active_workers{controller="noted"} 0',
        'controller_runtime_max_concurrent_reconciles{controller="noted"} 1',
        'workqueue_adds_total{name="noted"} 1',
        'workqueue_depth{name="noted",priority="0"} 0',
        'workqueue_queue_duration_seconds_count{name="noted"} 1',
        'rest_client_requests_total{code="201",host="cluster:443",method="POST"} 1',
        "process_resident_memory_bytes ",
    ):
        assert line in text


async def test_a_metrics_address_in_use_is_an_error(kube: Client, fake: FakeKubernetes) -> None:
    taken = fake.url.removeprefix("http://")
    with pytest.raises(MachineError, match="cannot listen on"):
        await Manager(kube, metrics_address=taken).run()
