"""What is done to a job on a cluster: stopped, suspended, scaled, removed, tied to a process."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import anyio
import msgspec
import pytest

from danlu.errors import OutsideError, UsageError
from danlu.jobs.kubernetes.client import KubernetesJobs
from danlu.jobs.kubernetes.tying import Ties
from danlu.kube.access import Access
from danlu.kube.client import Client, Selection
from danlu.kube.failures import ConnectionLost, Forbidden, NotFound
from danlu.kube.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, EVENTS, LEASES, PODS
from danlu.operator.crds import definitions
from danlu.testing.kubernetes import FakeKubernetes, Fault, VirtualClock
from danlu.testing.kubernetes.courses import Course
from danlu.training.registry import BUILT_IN
from tests.jobs.kubernetes.support import LIMIT, Site, job, lines_of, running, seen, worker
from tests.kube.objects import eventually

pytestmark = pytest.mark.anyio


async def pods(site: Site) -> set[str]:
    return {
        one["metadata"]["name"]
        for one in (await site.client.list(PODS, Selection(site.space))).items
    }


async def test_a_stopped_job_runs_no_more_and_is_finished(site: Site) -> None:
    await site.jobs.submit(job(workers=2))
    await seen(site, running(2))
    with anyio.fail_after(LIMIT):
        await site.jobs.stop("job", grace=1)
    view = await site.jobs.view("job")
    assert (view.state, view.finished) == ("Stopped", True)
    assert view.status.conditions[-1].message == "job was stopped: stopped by its user."
    assert {one.state for one in view.replicas} == {"Stopped"}
    assert await pods(site) == set()


async def test_who_follows_the_logs_of_a_job_that_is_stopped_is_let_go(site: Site) -> None:
    site.behave(Course(log="begun\n"))
    await site.jobs.submit(job())
    await seen(site, running(1))
    async with anyio.create_task_group() as group:
        group.start_soon(lines_of, site)
        await site.jobs.stop("job")
    assert (await site.jobs.view("job")).finished


async def test_a_suspended_job_goes_on_when_it_is_resumed(site: Site) -> None:
    await site.jobs.submit(job())
    await seen(site, running(1))
    await site.jobs.suspend("job", suspended=True)
    view = await seen(site, lambda view: view.state == "Suspended" and not running(1)(view))
    assert not view.finished
    await site.jobs.suspend("job", suspended=False)
    await seen(site, running(1))


async def test_scaling_changes_how_many_replicas_there_are(site: Site) -> None:
    await site.jobs.submit(job(workers=1))
    await seen(site, running(1))
    await site.jobs.scale("job", replicas={"worker": 3})
    await seen(site, running(3))
    with pytest.raises(UsageError, match="no replicas of type ps"):
        await site.jobs.scale("job", replicas={"ps": 1})


async def test_only_a_finished_job_is_removed_and_its_name_is_free_then(site: Site) -> None:
    site.behave(Course(run=0.05))
    await site.jobs.submit(job())
    await seen(site, lambda view: view.finished)
    await site.jobs.remove("job")
    assert await site.jobs.names() == []
    await site.jobs.submit(job())
    # A real garbage collector knows of new kinds, and takes away their pods, after 30 s.
    await seen(site, lambda view: view.finished, seconds=60.0)


async def test_a_job_that_runs_is_not_removed(site: Site) -> None:
    await site.jobs.submit(job())
    with pytest.raises(UsageError, match="not over"):
        await site.jobs.remove("job")


async def test_what_was_made_for_a_job_goes_with_it(site: Site, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x")
    code = {"train.py": tmp_path / "train.py"}
    site.behave(Course(run=0.05))
    await site.jobs.submit(msgspec.structs.replace(job(), code=code, tied=True))
    await seen(site, lambda view: view.finished)
    await site.client.get(CONFIG_MAPS, "job-code", namespace=site.space)
    await site.client.get(LEASES, "job-tie", namespace=site.space)
    await site.jobs.remove("job")

    async def gone() -> bool:
        there = 0
        for resource, name in ((CONFIG_MAPS, "job-code"), (LEASES, "job-tie")):
            try:
                await site.client.get(resource, name, namespace=site.space)
                there += 1
            except NotFound:
                continue
        return not there

    await eventually(gone)


async def test_a_submission_that_is_refused_leaves_nothing(fake_site: Site, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x")
    fake_site.fake.faults.append(Fault(verb="create", resource="pytorchjobs", status=403))
    sent = msgspec.structs.replace(job(), code={"train.py": tmp_path / "train.py"})
    with pytest.raises(Exception, match="told to fail"):
        await fake_site.jobs.submit(sent)
    with pytest.raises(NotFound):
        await fake_site.client.get(CONFIG_MAPS, "job-code", namespace=fake_site.space)


async def test_a_job_whose_code_cannot_be_made_its_own_is_taken_back(
    fake_site: Site, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("x")
    fake_site.fake.faults.append(Fault(verb="patch", resource="configmaps", status=403))
    sent = msgspec.structs.replace(job(), code={"train.py": tmp_path / "train.py"})
    with pytest.raises(Forbidden):
        await fake_site.jobs.submit(sent)
    assert await fake_site.jobs.names() == []
    with pytest.raises(NotFound):
        await fake_site.client.get(CONFIG_MAPS, "job-code", namespace=fake_site.space)


@pytest.mark.parametrize("after", [True, False])
async def test_a_job_is_submitted_or_not_also_where_the_answer_is_lost(
    fake_site: Site, tmp_path: Path, after: bool
) -> None:
    (tmp_path / "train.py").write_text("x")
    lost = Fault(verb="create", resource="pytorchjobs", drop=True, after=after)
    fake_site.fake.faults.append(lost)
    sent = msgspec.structs.replace(job(), code={"train.py": tmp_path / "train.py"})
    with nullcontext() if after else pytest.raises(ConnectionLost):
        await fake_site.jobs.submit(sent)
    assert await fake_site.jobs.names() == (["job"] if after else [])
    maps = (await fake_site.client.list(CONFIG_MAPS, Selection(fake_site.space))).items
    assert [one["metadata"]["name"] for one in maps] == (["job-code"] if after else [])


async def test_a_cluster_without_the_kinds_is_told_what_to_install() -> None:
    async with FakeKubernetes() as fake:
        jobs = KubernetesJobs(Access(server=fake.url))
        with pytest.raises(OutsideError, match="knows no kubeflow") as caught:
            await jobs.submit(job())
        assert "danlu operator manifests" in caught.value.hint
        with pytest.raises(OutsideError):
            await jobs.names()


async def test_a_tied_jobs_lease_is_renewed_while_its_submitter_lives(site: Site) -> None:
    await site.jobs.submit(msgspec.structs.replace(job(), tied=True))
    ties = Ties(site.client.access, every=0.02)
    ties.hold(site.space, "job-tie")
    first = (await site.client.get(LEASES, "job-tie", namespace=site.space))["spec"]["renewTime"]

    async def renewed() -> bool:
        found = await site.client.get(LEASES, "job-tie", namespace=site.space)
        return bool(found["spec"]["renewTime"] != first)

    await eventually(renewed)
    await site.client.delete(LEASES, "job-tie", namespace=site.space)

    async def let_go() -> bool:
        return not ties.held

    await eventually(let_go)


async def test_why_a_replica_is_pending_is_said_in_words(site: Site) -> None:
    site.behave(
        Course(unschedulable="0/3 nodes are available: 3 Insufficient cpu."), "job-worker-0"
    )
    site.behave(Course(waiting="ErrImagePull"), "job-worker-1")
    await site.jobs.submit(job(workers=2))

    early = ("", "the scheduler", "its pod to be made", "its node to take it up")
    view = await seen(site, lambda view: all(one.waits not in early for one in view.replicas))
    first, second = view.replicas
    assert first.waits == "a node: 0/3 nodes are available: 3 Insufficient cpu."
    assert second.waits.startswith("its image, which cannot be pulled")


async def test_what_events_say_of_a_pod_that_does_not_begin_is_told(site: Site) -> None:
    site.behave(Course(start=None))
    await site.jobs.submit(job())
    await seen(site, lambda view: view.replicas[0].waits.startswith("its container"))
    pod = await site.client.get(PODS, "job-worker-0", namespace=site.space)
    about = {"kind": "Pod", "name": "job-worker-0", "namespace": site.space}
    event = {
        "metadata": {"name": "one", "namespace": site.space},
        "involvedObject": {**about, "uid": pod["metadata"]["uid"]},
        "type": "Warning",
        "reason": "FailedMount",
        "message": 'configmap "data" not found',
    }
    await site.client.create(EVENTS, EVENTS.document(event))
    (replica,) = (await site.jobs.view("job")).replicas
    assert replica.waits == 'its container to be made: configmap "data" not found'


async def test_a_job_that_no_operator_takes_up_says_so_after_a_while() -> None:
    clock = VirtualClock()
    async with FakeKubernetes(now=clock.now) as fake:
        access = Access(server=fake.url)
        async with Client(access) as client:
            for one in definitions(BUILT_IN):
                await client.create(CUSTOM_RESOURCE_DEFINITIONS, one)
        jobs = KubernetesJobs(access, clock=clock)
        await jobs.submit(job())
        assert (await jobs.view("job")).warnings == ()
        await clock.advance(20)
        (warning,) = (await jobs.view("job")).warnings
        assert "no operator has taken it up" in warning


async def test_a_job_that_no_operator_takes_up_can_be_stopped_and_removed() -> None:
    clock = VirtualClock()
    async with FakeKubernetes(now=clock.now) as fake:
        access = Access(server=fake.url)
        async with Client(access) as client:
            for one in definitions(BUILT_IN):
                await client.create(CUSTOM_RESOURCE_DEFINITIONS, one)
        jobs = KubernetesJobs(access, clock=clock)
        await jobs.submit(job())
        await clock.advance(20)
        with anyio.fail_after(10):
            await jobs.stop("job")
        assert (await jobs.view("job")).state == "Stopped"
        await jobs.remove("job")
        assert await jobs.names() == []


def _refusing(*plurals: str) -> list[Fault]:
    return [
        Fault(verb=verb, resource=one, times=100, status=403)
        for one in plurals
        for verb in ("get", "list")
    ]


async def test_kinds_that_may_not_be_read_are_left_out(fake_site: Site) -> None:
    others = [one.plural for one in BUILT_IN if one.kind != "PyTorchJob"]
    fake_site.fake.faults += _refusing(*others)
    await fake_site.jobs.submit(job())
    assert (await fake_site.jobs.view("job")).kind == "PyTorchJob"
    assert await fake_site.jobs.names() == ["job"]
    fake_site.fake.faults += _refusing("pytorchjobs")
    with pytest.raises(Forbidden):
        await fake_site.jobs.names()
    with pytest.raises(Forbidden):
        await fake_site.jobs.view("job")


async def test_what_a_replica_ran_is_told_without_what_brought_its_code(
    site: Site, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("x")
    sent = msgspec.structs.replace(job(), code={"train.py": tmp_path / "train.py"})
    await site.jobs.submit(sent)
    await seen(site, running(1))
    command = await site.jobs.command("job", worker())
    assert command.args == ("python", "train.py")
    assert command.directory == "/workspace"
    assert command.environment["PYTHONUNBUFFERED"] == "1"
    with pytest.raises(UsageError, match="has not run yet"):
        await site.jobs.command("job", worker(5))
