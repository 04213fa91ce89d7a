"""Failures on the way: the operator reaches the same end with few requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import anyio
import pytest

from danlu.kube.client import Client
from danlu.kube.manager import Manager
from danlu.kube.resources import EVENTS, PODS, SERVICES
from danlu.kube.watch import ListOptions
from danlu.operator.reconcile import Reconciler
from tests.fakes.kubernetes import ApiFault, FakeKubernetes, VirtualClock
from tests.operator.operator_namespace import OperatorNamespace, jobs

pytestmark = pytest.mark.anyio
NAMES = ("job-master-0", "job-worker-0", "job-worker-1")


@pytest.fixture
def site(fake_site: OperatorNamespace) -> OperatorNamespace:
    return fake_site


@pytest.fixture
def fake(site: OperatorNamespace) -> FakeKubernetes:
    assert site.fake is not None
    return site.fake


@pytest.fixture
def virtual_clock(clock: VirtualClock) -> VirtualClock:
    return clock


def count_requests(fake: FakeKubernetes) -> Counter[tuple[str, str]]:
    """Count the operators' writes: tests only read, and write the status of pods."""
    return Counter(
        {
            obj: number
            for obj, number in fake.counts.items()
            if obj[0] in ("create", "patch", "delete") and obj[1] not in ("pods/status", "events")
        }
    )


async def run_whole_job(site: OperatorNamespace) -> None:
    """A job of three replicas, from its submission to its success."""
    await site.submit("PyTorchJob", Master=1, Worker=2)
    await site.wait_for_pods(*NAMES)
    await site.run()
    await site.wait_for_state("Running")
    await site.end()
    await site.wait_for_state("Succeeded")


async def test_a_job_without_faults_costs_twelve_requests(
    site: OperatorNamespace, fake: FakeKubernetes, operator: Manager
) -> None:
    before = count_requests(fake)
    await run_whole_job(site)
    await site.pass_time(5)
    spent = count_requests(fake) - before
    assert spent["create", "pytorchjobs"] == 1
    del spent["create", "pytorchjobs"]
    assert (spent["create", "pods"], spent["create", "services"]) == (3, 3)
    assert 3 <= spent["patch", "pytorchjobs/status"] <= 5
    assert spent.total() <= 11
    assert fake.counts["create", "events"] <= 3


FAULTS = {
    "the server fails at pods": ApiFault(verb="create", resource="pods", status=500, times=5),
    "the server is not there for Services": ApiFault(
        verb="create", resource="services", status=503, times=5
    ),
    "too many requests": ApiFault(
        verb="create", resource="pods", status=429, retry_after=1, times=4
    ),
    "statuses conflict": ApiFault(verb="patch", resource="pytorchjobs/status", status=409, times=4),
    "statuses fail": ApiFault(verb="patch", resource="pytorchjobs/status", status=500, times=4),
    "no answer, nothing done": ApiFault(verb="create", resource="pods", drop=True, times=3),
    "no answer, but done": ApiFault(verb="create", resource="pods", drop=True, after=True, times=3),
    "a status is written without an answer": ApiFault(
        verb="patch", resource="pytorchjobs/status", drop=True, after=True, times=2
    ),
    "a quota is used up": ApiFault(verb="create", resource="pods", status=403, times=6),
    "slow answers": ApiFault(verb="create", resource="pods", delay=0.05, times=3),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_a_job_comes_to_its_end_all_the_same(
    fault: ApiFault, site: OperatorNamespace, fake: FakeKubernetes, operator: Manager
) -> None:
    fake.faults.append(replace(fault))
    before = count_requests(fake)
    await run_whole_job(site)
    spent = count_requests(fake) - before
    assert fake.faults[0].times == 0
    assert await site.pods() == sorted(NAMES)
    assert await site.services() == sorted(NAMES)
    # A failure only costs the failed request and those in its batch.
    assert spent.total() <= 13 + 3 * fault.times
    await site.wait_for_event("PyTorchJobSucceeded")
    assert len(await site.messages("PyTorchJobSucceeded")) == 1


@pytest.mark.parametrize("arrives", [True, False], ids=["written", "lost"])
async def test_an_event_is_recorded_when_its_status_write_gets_no_response(
    arrives: bool, site: OperatorNamespace, fake: FakeKubernetes, operator: Manager
) -> None:
    await site.submit("PyTorchJob", Master=1)
    await site.wait_for_pods("job-master-0")
    await site.run()
    await site.wait_for_state("Running")
    await site.pass_time(2)
    fake.faults.append(
        ApiFault(verb="patch", resource="pytorchjobs/status", drop=True, after=arrives, times=1)
    )
    await site.end()
    await site.wait_for_state("Succeeded")
    await site.wait_for_event("PyTorchJobSucceeded")
    await site.pass_time(5)
    assert fake.faults[0].times == 0
    (event,) = [
        event for event in await site.all_of(EVENTS) if event["reason"] == "PyTorchJobSucceeded"
    ]
    assert event["count"] == (1 if arrives else 2), "the same is decided again if it was lost"


async def test_a_persistent_rejection_is_retried_with_backoff(
    site: OperatorNamespace, fake: FakeKubernetes, operator: Manager
) -> None:
    fault = ApiFault(verb="create", resource="pods", status=403, times=10_000)
    fake.faults.append(fault)
    await site.submit("PyTorchJob", Worker=50)
    await site.wait_for_event("FailedCreatePod")
    await site.pass_time(600)
    tries = 10_000 - fault.times
    # 5 ms doubled up to 1000 s: 17 times in ten minutes, two pods at most each.
    assert 5 < tries <= 60
    assert await site.pods() == []
    assert await site.state() == "Created"


async def test_an_exceeded_quota_is_retried_with_backoff(
    site: OperatorNamespace, fake: FakeKubernetes, operator: Manager
) -> None:
    full = ApiFault(verb="create", resource="pods", status=403, times=10_000)
    fake.faults += [ApiFault(verb="create", resource="pods", delay=1e-6, times=110), full]
    await site.submit("PyTorchJob", Worker=140)
    await site.wait_for_event("FailedCreatePod")
    before = count_requests(fake)
    await site.pass_time(300)
    assert len(await site.pods()) == 110
    assert (count_requests(fake) - before)["create", "pods"] <= 60
    full.times = 0
    await site.pass_time(400)
    assert len(await site.pods()) == 140


async def test_a_job_of_many_replicas_is_not_written_for_each(
    site: OperatorNamespace, fake: FakeKubernetes, operator: Manager
) -> None:
    before = count_requests(fake)
    await site.submit("PyTorchJob", Worker=120)

    async def all_pods_exist() -> bool:
        return len(await site.pods()) == 120

    await site.eventually(all_pods_exist)
    await site.run()
    await site.wait_for_state("Running")
    await site.end()
    await site.wait_for_state("Succeeded")
    spent = count_requests(fake) - before
    assert (spent["create", "pods"], spent["create", "services"]) == (120, 120)
    assert spent["patch", "pytorchjobs/status"] <= 60


@pytest.mark.parametrize("forgotten", [False, True], ids=["dropped", "expired"])
async def test_changes_between_two_watches_are_seen(
    forgotten: bool, site: OperatorNamespace, fake: FakeKubernetes, operator: Manager
) -> None:
    await site.submit("PyTorchJob", Master=1, Worker=2)
    await site.wait_for_pods(*NAMES)
    await site.run()
    await site.wait_for_state("Running")
    refused = ApiFault(verb="watch", times=40, status=503)
    fake.faults.append(refused)
    fake.cluster.storage.end_watches()
    await site.end("job-worker-0")
    await site.delete("job-worker-1")
    before = await site.services()
    if forgotten:
        fake.cluster.storage.compact()
    await site.pass_time(1)
    refused.times = 0
    await site.wait_for_pods(*NAMES)
    assert await site.services() == before
    records = (await site.status())["records"]
    assert records["worker-0"]["completed"]
    assert records["worker-1"]["restarts"] == 1
    await site.end("job-master-0")
    await site.wait_for_state("Succeeded")


async def test_a_server_that_was_restarted_is_followed_again(
    site: OperatorNamespace, fake: FakeKubernetes, operator: Manager
) -> None:
    await site.submit("PyTorchJob", Master=1, Worker=2)
    await site.wait_for_pods(*NAMES)
    uids = [await site.uid(name) for name in NAMES]
    await fake.__aexit__(None, None, None)
    await site.pass_time(10)
    await fake.__aenter__()
    await site.run()
    await site.wait_for_state("Running")
    assert [await site.uid(name) for name in NAMES] == uids
    await site.end()
    await site.wait_for_state("Succeeded")


async def test_a_config_map_that_is_too_large_is_recorded_and_retried_with_backoff(
    site: OperatorNamespace, fake: FakeKubernetes, operator: Manager
) -> None:
    fault = ApiFault(verb="create", resource="configmaps", status=413, times=10_000)
    fake.faults.append(fault)
    await site.submit("MPIJob", Launcher=1, Worker=1)
    await site.wait_for_event("FailedCreateConfigMap")
    await site.pass_time(60)
    assert 10_000 - fault.times <= 20
    assert await site.pods() == []


async def test_a_job_that_is_deleted_while_its_pods_are_created_leaves_nothing(
    site: OperatorNamespace, fake: FakeKubernetes, operator: Manager
) -> None:
    # The first two rounds are quick; the others last so long that the deletion comes between.
    fake.faults += [
        ApiFault(verb="create", resource="pods", delay=1e-6, times=6),
        ApiFault(verb="create", resource="pods", delay=0.3, times=200),
    ]
    await site.submit("PyTorchJob", Worker=60)

    async def pods_appear() -> bool:
        return len(await site.pods()) > 3

    await site.eventually(pods_appear)
    await site.client.delete(jobs("PyTorchJob"), "job", namespace=site.space)
    await site.wait_for_pods()
    await site.wait_for_services()
    before = count_requests(fake)
    assert before["create", "pods"] < 60
    await site.pass_time(10)
    assert not count_requests(fake) - before
    assert await site.pods() == await site.services() == []


async def test_a_successor_of_the_same_name_gets_new_pods(
    site: OperatorNamespace, operator: Manager
) -> None:
    first = await site.submit("PyTorchJob", Worker=2)
    await site.wait_for_pods("job-worker-0", "job-worker-1")
    await site.client.delete(jobs("PyTorchJob"), "job", namespace=site.space)
    second = await site.submit("PyTorchJob", Worker=2)
    assert first["metadata"]["uid"] != second["metadata"]["uid"]

    async def pods_have_new_owner() -> bool:
        owners = [pod["metadata"]["ownerReferences"][0]["uid"] for pod in await site.all_of(PODS)]
        return owners == [second["metadata"]["uid"]] * 2

    await site.eventually(pods_have_new_owner)
    await site.run()
    await site.end()
    await site.wait_for_state("Succeeded")


@pytest.mark.parametrize(
    ("labels", "seconds"),
    [({"training.kubeflow.org/job-name": "job"}, 1.0), ({}, 61.0)],
    ids=["seen", "unseen"],
)
async def test_a_name_that_became_free_is_not_waited_for_long(
    labels: dict[str, str],
    seconds: float,
    site: OperatorNamespace,
    fake: FakeKubernetes,
    operator: Manager,
) -> None:
    metadata = {"name": "job-worker-0", "namespace": site.space, "labels": labels}
    containers = [{"name": "other", "image": "example/other:1"}]
    foreign = PODS.to_manifest({"metadata": metadata, "spec": {"containers": containers}})
    await site.client.create(PODS, foreign)
    before = await site.uid("job-worker-0")
    await site.submit("PyTorchJob", Worker=1)
    await site.wait_for_event("FailedCreatePod")
    await site.pass_time(900)
    tries = fake.counts["create", "pods"]
    assert tries < 40
    await site.delete("job-worker-0")
    await site.pass_time(seconds)
    assert await site.uid("job-worker-0") != before


async def test_pods_that_vanish_together_are_recreated_and_count_once(
    site: OperatorNamespace, operator: Manager
) -> None:
    await site.submit("PyTorchJob", Master=1, Worker=2)
    await site.wait_for_pods(*NAMES)
    await site.run()
    await site.wait_for_state("Running")
    uids = {await site.uid(name) for name in NAMES}
    await site.client.delete_all(PODS, ListOptions(site.space))

    async def pods_are_recreated() -> bool:
        result = await site.all_of(PODS)
        return len(result) == 3 and not uids & {obj["metadata"]["uid"] for obj in result}

    await site.eventually(pods_are_recreated)
    records = (await site.status())["records"]
    assert {name: record["restarts"] for name, record in records.items()} == {
        "master-0": 1,
        "worker-0": 1,
        "worker-1": 1,
    }


async def test_a_day_that_jumps_changes_no_count(
    site: OperatorNamespace, virtual_clock: VirtualClock, operator: Manager
) -> None:
    await site.submit("PyTorchJob", run={"activeDeadlineSeconds": 36_000}, Worker=2)
    await site.wait_for_pods("job-worker-0", "job-worker-1")
    await site.run()
    await site.wait_for_state("Running")
    for seconds in (3600, -7200, 1800):
        virtual_clock.jump(seconds)
        await site.pass_time(700)
    assert await site.state() == "Running"
    virtual_clock.jump(40_000)
    # It is noticed without a timer for it: no delay is longer than this.
    await site.pass_time(601)
    await site.wait_for_state("Failed")


@pytest.mark.real
async def test_a_day_passes_without_growth(
    site: OperatorNamespace, fake: FakeKubernetes, virtual_clock: VirtualClock
) -> None:
    async with site.operator_runs(kinds=("PyTorchJob",)) as manager:
        await site.submit("PyTorchJob", "long", Worker=1)
        await site.submit("PyTorchJob", run={"ttlSecondsAfterFinished": 60}, Worker=1)
        await site.wait_for_pods("job-worker-0", "long-worker-0")
        await site.run()
        await site.end("job-worker-0")
        await site.eventually(site.is_gone)
        await site.pass_time(120)
        before, timers = count_requests(fake), virtual_clock.pending_timers
        for _ in range(24 * 6):
            await virtual_clock.advance(600)
            await anyio.sleep(0.002)
        assert not count_requests(fake) - before
        assert virtual_clock.pending_timers <= timers + 2
        (controller,) = [
            controller
            for controller in manager._controllers
            if controller.name.startswith("pytorch")
        ]
        reconciler = controller._reconcile
        assert isinstance(reconciler, Reconciler)
        assert len(reconciler.decoder) == len(reconciler.status_cache) == 1
        assert len(reconciler.expectations) == len(reconciler.deleted_pods) == 0
        assert len(reconciler.applier.dependents) <= 1


async def test_existing_pods_of_the_job_are_not_created_twice(site: OperatorNamespace) -> None:
    async with site.operator_runs():
        await site.submit("PyTorchJob", Master=1, Worker=2)
        await site.wait_for_pods(*NAMES)
        await site.wait_for_services(*NAMES)
    uids = [await site.uid(name) for name in NAMES]
    async with site.operator_runs():
        await site.run()
        await site.wait_for_state("Running")
        assert [await site.uid(name) for name in NAMES] == uids
        assert len(await site.all_of(SERVICES)) == 3
        async with Client(site.operator, manager="tests") as client:
            assert len((await client.list(PODS, ListOptions(site.space))).items) == 3
