"""What goes wrong on the way: the operator comes to the same end, and asks no more than it must."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import anyio
import pytest

from danlu.kube.client import Client, Selection
from danlu.kube.manager import Manager
from danlu.kube.resources import EVENTS, PODS, SERVICES
from danlu.operator.reconcile import Reconciler
from danlu.testing.kubernetes import FakeKubernetes, Fault, VirtualClock
from tests.operator.site import Site, jobs

pytestmark = pytest.mark.anyio
NAMES = ("job-master-0", "job-worker-0", "job-worker-1")


@pytest.fixture
def site(fake_site: Site) -> Site:
    return fake_site


@pytest.fixture
def fake(site: Site) -> FakeKubernetes:
    assert site.fake is not None
    return site.fake


@pytest.fixture
def held(clock: VirtualClock) -> VirtualClock:
    return clock


def asked(fake: FakeKubernetes) -> Counter[tuple[str, str]]:
    """What operators write: what the tests ask for is reads, and the status of pods."""
    return Counter(
        {
            one: number
            for one, number in fake.counts.items()
            if one[0] in ("create", "patch", "delete") and one[1] not in ("pods/status", "events")
        }
    )


async def whole_life(site: Site) -> None:
    """A job of three replicas, from its submission to its success."""
    await site.submit("PyTorchJob", Master=1, Worker=2)
    await site.until_pods(*NAMES)
    await site.run()
    await site.until("Running")
    await site.end()
    await site.until("Succeeded")


async def test_a_job_without_faults_costs_twelve_requests(
    site: Site, fake: FakeKubernetes, operator: Manager
) -> None:
    before = asked(fake)
    await whole_life(site)
    await site.pass_time(5)
    spent = asked(fake) - before
    assert spent["create", "pytorchjobs"] == 1
    del spent["create", "pytorchjobs"]
    assert (spent["create", "pods"], spent["create", "services"]) == (3, 3)
    assert 3 <= spent["patch", "pytorchjobs/status"] <= 5
    assert spent.total() <= 11
    assert fake.counts["create", "events"] <= 3


FAULTS = {
    "the server fails at pods": Fault(verb="create", resource="pods", status=500, times=5),
    "the server is not there for Services": Fault(
        verb="create", resource="services", status=503, times=5
    ),
    "too many requests": Fault(verb="create", resource="pods", status=429, retry_after=1, times=4),
    "statuses conflict": Fault(verb="patch", resource="pytorchjobs/status", status=409, times=4),
    "statuses fail": Fault(verb="patch", resource="pytorchjobs/status", status=500, times=4),
    "no answer, nothing done": Fault(verb="create", resource="pods", drop=True, times=3),
    "no answer, but done": Fault(verb="create", resource="pods", drop=True, after=True, times=3),
    "a status is written without an answer": Fault(
        verb="patch", resource="pytorchjobs/status", drop=True, after=True, times=2
    ),
    "a quota is used up": Fault(verb="create", resource="pods", status=403, times=6),
    "slow answers": Fault(verb="create", resource="pods", delay=0.05, times=3),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_a_job_comes_to_its_end_all_the_same(
    fault: Fault, site: Site, fake: FakeKubernetes, operator: Manager
) -> None:
    fake.faults.append(replace(fault))
    before = asked(fake)
    await whole_life(site)
    spent = asked(fake) - before
    assert fake.faults[0].times == 0
    assert await site.pods() == sorted(NAMES)
    assert await site.services() == sorted(NAMES)
    # A failure costs what failed and what went beside it, not more.
    assert spent.total() <= 13 + 3 * fault.times
    await site.until_event("PyTorchJobSucceeded")
    assert len(await site.messages("PyTorchJobSucceeded")) == 1


@pytest.mark.parametrize("arrives", [True, False], ids=["written", "lost"])
async def test_an_end_whose_status_gets_no_answer_is_told_of_once(
    arrives: bool, site: Site, fake: FakeKubernetes, operator: Manager
) -> None:
    await site.submit("PyTorchJob", Master=1)
    await site.until_pods("job-master-0")
    await site.run()
    await site.until("Running")
    await site.pass_time(2)
    fake.faults.append(
        Fault(verb="patch", resource="pytorchjobs/status", drop=True, after=arrives, times=1)
    )
    await site.end()
    await site.until("Succeeded")
    await site.until_event("PyTorchJobSucceeded")
    await site.pass_time(5)
    assert fake.faults[0].times == 0
    (event,) = [one for one in await site.all_of(EVENTS) if one["reason"] == "PyTorchJobSucceeded"]
    assert event["count"] == 1


async def test_a_refusal_that_stays_is_tried_ever_more_seldom(
    site: Site, fake: FakeKubernetes, operator: Manager
) -> None:
    fault = Fault(verb="create", resource="pods", status=403, times=10_000)
    fake.faults.append(fault)
    await site.submit("PyTorchJob", Worker=50)
    await site.until_event("FailedCreatePod")
    await site.pass_time(600)
    tries = 10_000 - fault.times
    # 5 ms doubled up to 1000 s: 17 times in ten minutes, two pods at most each.
    assert 5 < tries <= 60
    assert await site.pods() == []
    assert await site.state() == "Created"


async def test_a_quota_that_ends_in_the_middle_is_no_reason_to_hurry(
    site: Site, fake: FakeKubernetes, operator: Manager
) -> None:
    full = Fault(verb="create", resource="pods", status=403, times=10_000)
    fake.faults += [Fault(verb="create", resource="pods", delay=1e-6, times=110), full]
    await site.submit("PyTorchJob", Worker=140)
    await site.until_event("FailedCreatePod")
    before = asked(fake)
    await site.pass_time(300)
    assert len(await site.pods()) == 110
    assert (asked(fake) - before)["create", "pods"] <= 60
    full.times = 0
    await site.pass_time(400)
    assert len(await site.pods()) == 140


async def test_a_job_of_many_replicas_is_not_written_for_each(
    site: Site, fake: FakeKubernetes, operator: Manager
) -> None:
    before = asked(fake)
    await site.submit("PyTorchJob", Worker=120)

    async def made() -> bool:
        return len(await site.pods()) == 120

    await site.eventually(made)
    await site.run()
    await site.until("Running")
    await site.end()
    await site.until("Succeeded")
    spent = asked(fake) - before
    assert (spent["create", "pods"], spent["create", "services"]) == (120, 120)
    assert spent["patch", "pytorchjobs/status"] <= 60


@pytest.mark.parametrize("forgotten", [False, True], ids=["dropped", "expired"])
async def test_what_happens_while_no_watch_stands_is_learnt(
    forgotten: bool, site: Site, fake: FakeKubernetes, operator: Manager
) -> None:
    await site.submit("PyTorchJob", Master=1, Worker=2)
    await site.until_pods(*NAMES)
    await site.run()
    await site.until("Running")
    refused = Fault(verb="watch", times=40, status=503)
    fake.faults.append(refused)
    fake.cluster.storage.end_watches()
    await site.end("job-worker-0")
    await site.delete("job-worker-1")
    before = await site.services()
    if forgotten:
        fake.cluster.storage.compact()
    await site.pass_time(1)
    refused.times = 0
    await site.until_pods(*NAMES)
    assert await site.services() == before
    records = (await site.status())["records"]
    assert records["worker-0"]["completed"]
    assert records["worker-1"]["restarts"] == 1
    await site.end("job-master-0")
    await site.until("Succeeded")


async def test_a_server_that_was_restarted_is_followed_again(
    site: Site, fake: FakeKubernetes, operator: Manager
) -> None:
    await site.submit("PyTorchJob", Master=1, Worker=2)
    await site.until_pods(*NAMES)
    uids = [await site.uid(name) for name in NAMES]
    await fake.__aexit__(None, None, None)
    await site.pass_time(10)
    await fake.__aenter__()
    await site.run()
    await site.until("Running")
    assert [await site.uid(name) for name in NAMES] == uids
    await site.end()
    await site.until("Succeeded")


async def test_files_that_are_too_big_are_told_of_and_tried_seldom(
    site: Site, fake: FakeKubernetes, operator: Manager
) -> None:
    fault = Fault(verb="create", resource="configmaps", status=413, times=10_000)
    fake.faults.append(fault)
    await site.submit("MPIJob", Launcher=1, Worker=1)
    await site.until_event("FailedCreateConfigMap")
    await site.pass_time(60)
    assert 10_000 - fault.times <= 20
    assert await site.pods() == []


async def test_a_job_that_is_deleted_while_its_pods_are_made_leaves_nothing(
    site: Site, fake: FakeKubernetes, operator: Manager
) -> None:
    # The first two rounds are quick; the others last so long that the deletion comes between.
    fake.faults += [
        Fault(verb="create", resource="pods", delay=1e-6, times=6),
        Fault(verb="create", resource="pods", delay=0.3, times=200),
    ]
    await site.submit("PyTorchJob", Worker=60)

    async def begun() -> bool:
        return len(await site.pods()) > 3

    await site.eventually(begun)
    await site.client.delete(jobs("PyTorchJob"), "job", namespace=site.space)
    await site.until_pods()
    await site.until_services()
    before = asked(fake)
    assert before["create", "pods"] < 60
    await site.pass_time(10)
    assert not asked(fake) - before
    assert await site.pods() == await site.services() == []


async def test_a_successor_of_the_same_name_gets_pods_of_its_own(
    site: Site, operator: Manager
) -> None:
    first = await site.submit("PyTorchJob", Worker=2)
    await site.until_pods("job-worker-0", "job-worker-1")
    await site.client.delete(jobs("PyTorchJob"), "job", namespace=site.space)
    second = await site.submit("PyTorchJob", Worker=2)
    assert first["metadata"]["uid"] != second["metadata"]["uid"]

    async def owned() -> bool:
        owners = [one["metadata"]["ownerReferences"][0]["uid"] for one in await site.all_of(PODS)]
        return owners == [second["metadata"]["uid"]] * 2

    await site.eventually(owned)
    await site.run()
    await site.end()
    await site.until("Succeeded")


@pytest.mark.parametrize(
    ("labels", "seconds"),
    [({"training.kubeflow.org/job-name": "job"}, 1.0), ({}, 61.0)],
    ids=["seen", "unseen"],
)
async def test_a_name_that_became_free_is_not_waited_for_long(
    labels: dict[str, str], seconds: float, site: Site, fake: FakeKubernetes, operator: Manager
) -> None:
    metadata = {"name": "job-worker-0", "namespace": site.space, "labels": labels}
    containers = [{"name": "other", "image": "example/other:1"}]
    foreign = PODS.document({"metadata": metadata, "spec": {"containers": containers}})
    await site.client.create(PODS, foreign)
    before = await site.uid("job-worker-0")
    await site.submit("PyTorchJob", Worker=1)
    await site.until_event("FailedCreatePod")
    await site.pass_time(900)
    tries = fake.counts["create", "pods"]
    assert tries < 40
    await site.delete("job-worker-0")
    await site.pass_time(seconds)
    assert await site.uid("job-worker-0") != before


async def test_pods_that_vanish_all_at_once_come_back_and_count_once(
    site: Site, operator: Manager
) -> None:
    await site.submit("PyTorchJob", Master=1, Worker=2)
    await site.until_pods(*NAMES)
    await site.run()
    await site.until("Running")
    uids = {await site.uid(name) for name in NAMES}
    await site.client.delete_all(PODS, Selection(site.space))

    async def back() -> bool:
        found = await site.all_of(PODS)
        return len(found) == 3 and not uids & {one["metadata"]["uid"] for one in found}

    await site.eventually(back)
    records = (await site.status())["records"]
    assert {name: one["restarts"] for name, one in records.items()} == {
        "master-0": 1,
        "worker-0": 1,
        "worker-1": 1,
    }


async def test_a_day_that_jumps_changes_no_count(
    site: Site, held: VirtualClock, operator: Manager
) -> None:
    await site.submit("PyTorchJob", run={"activeDeadlineSeconds": 36_000}, Worker=2)
    await site.until_pods("job-worker-0", "job-worker-1")
    await site.run()
    await site.until("Running")
    for seconds in (3600, -7200, 1800):
        held.jump(seconds)
        await site.pass_time(700)
    assert await site.state() == "Running"
    held.jump(40_000)
    # It is noticed though no timer of its own comes before: nothing waits for longer than this.
    await site.pass_time(601)
    await site.until("Failed")


@pytest.mark.real
async def test_a_day_passes_without_growth(
    site: Site, fake: FakeKubernetes, held: VirtualClock
) -> None:
    async with site.operator_runs(kinds=("PyTorchJob",)) as manager:
        await site.submit("PyTorchJob", "long", Worker=1)
        await site.submit("PyTorchJob", run={"ttlSecondsAfterFinished": 60}, Worker=1)
        await site.until_pods("job-worker-0", "long-worker-0")
        await site.run()
        await site.end("job-worker-0")
        await site.eventually(site.is_gone)
        await site.pass_time(120)
        before, timers = asked(fake), held.waiting
        for _ in range(24 * 6):
            await held.advance(600)
            await anyio.sleep(0.002)
        assert not asked(fake) - before
        assert held.waiting <= timers + 2
        (controller,) = [one for one in manager._controllers if one.name.startswith("pytorch")]
        reconciler = controller._reconcile
        assert isinstance(reconciler, Reconciler)
        assert len(reconciler.reader) == len(reconciler.written) == 1
        assert len(reconciler.expectations) == len(reconciler.vanishing) == 0
        assert len(reconciler.untold) == 0
        assert len(reconciler.carrier.belongings) <= 1


async def test_what_others_made_beforehand_is_not_made_twice(site: Site) -> None:
    async with site.operator_runs():
        await site.submit("PyTorchJob", Master=1, Worker=2)
        await site.until_pods(*NAMES)
        await site.until_services(*NAMES)
    uids = [await site.uid(name) for name in NAMES]
    async with site.operator_runs():
        await site.run()
        await site.until("Running")
        assert [await site.uid(name) for name in NAMES] == uids
        assert len(await site.all_of(SERVICES)) == 3
        async with Client(site.operator, manager="tests") as client:
            assert len((await client.list(PODS, Selection(site.space))).items) == 3
