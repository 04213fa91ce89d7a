"""Operations on a job on a cluster: stop, suspend, scale, remove, owner lease."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import anyio
import msgspec
import pytest

from danlu.errors import OutsideError, UsageError
from danlu.jobs.kubernetes.client import KubernetesJobs
from danlu.jobs.kubernetes.submit import LeaseRenewer
from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from danlu.kube.errors import ConnectionLost, Forbidden, NotFound
from danlu.kube.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, EVENTS, LEASES, PODS
from danlu.kube.watch import ListOptions
from danlu.operator.crds import custom_resource_definitions
from danlu.training.registry import BUILT_IN_FRAMEWORKS, TRAIN_JOB
from tests.fakes.kubernetes import ApiFault, FakeKubernetes, VirtualClock
from tests.fakes.kubernetes.pod_script import PodScript
from tests.jobs.kubernetes.support import (
    LIMIT,
    JobNamespace,
    job,
    lines_of,
    running,
    wait_for_view,
    worker,
)
from tests.kube.objects import eventually

pytestmark = pytest.mark.anyio


async def pods(site: JobNamespace) -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in (await site.client.list(PODS, ListOptions(site.space))).items
    }


async def test_a_stopped_job_has_no_pods_and_is_finished(site: JobNamespace) -> None:
    await site.jobs.submit(job(workers=2))
    await wait_for_view(site, running(2))
    with anyio.fail_after(LIMIT):
        await site.jobs.stop("job", grace=1)
    view = await site.jobs.view("job")
    assert (view.state, view.finished) == ("Stopped", True)
    assert view.status.conditions[-1].message == "job was stopped: stopped by its user."
    assert {replica.state for replica in view.replicas} == {"Stopped"}
    assert await pods(site) == set()


async def test_following_logs_ends_when_the_job_is_stopped(site: JobNamespace) -> None:
    site.behave(PodScript(log="begun\n"))
    await site.jobs.submit(job())
    await wait_for_view(site, running(1))
    async with anyio.create_task_group() as group:
        group.start_soon(lines_of, site)
        await site.jobs.stop("job")
    assert (await site.jobs.view("job")).finished


async def test_a_suspended_job_continues_when_resumed(site: JobNamespace) -> None:
    await site.jobs.submit(job())
    await wait_for_view(site, running(1))
    await site.jobs.suspend("job", suspended=True)
    view = await wait_for_view(
        site, lambda view: view.state == "Suspended" and not running(1)(view)
    )
    assert not view.finished
    await site.jobs.suspend("job", suspended=False)
    await wait_for_view(site, running(1))


async def test_a_job_is_suspending_while_its_pods_save(fake_site: JobNamespace) -> None:
    fake_site.behave(PodScript(stop=LIMIT))
    await fake_site.jobs.submit(job())
    await wait_for_view(fake_site, running(1))
    await fake_site.jobs.suspend("job", suspended=True)
    view = await wait_for_view(fake_site, lambda view: view.state != "Running")
    assert (view.state, running(1)(view)) == ("Suspending", True)


async def test_scaling_changes_the_number_of_replicas(site: JobNamespace) -> None:
    await site.jobs.submit(job(workers=1))
    await wait_for_view(site, running(1))
    await site.jobs.scale("job", replicas={"worker": 3})
    await wait_for_view(site, running(3))
    with pytest.raises(UsageError, match="no replicas of type ps"):
        await site.jobs.scale("job", replicas={"ps": 1})


@pytest.mark.usefixtures("garbage_collector")
async def test_removing_a_finished_job_frees_its_name(site: JobNamespace) -> None:
    site.behave(PodScript(run=0.05))
    await site.jobs.submit(job())
    await wait_for_view(site, lambda view: view.finished)
    await site.jobs.remove("job")
    assert await site.jobs.names() == []
    await site.jobs.submit(job())
    # A real garbage collector knows of new kinds, and takes away their pods, after 30 s.
    await wait_for_view(site, lambda view: view.finished, seconds=60.0)


async def test_a_running_job_is_not_removed(site: JobNamespace) -> None:
    await site.jobs.submit(job())
    with pytest.raises(UsageError, match="is still running"):
        await site.jobs.remove("job")


@pytest.mark.usefixtures("garbage_collector")
async def test_owned_objects_are_deleted_with_the_job(site: JobNamespace, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x")
    code = {"train.py": tmp_path / "train.py"}
    site.behave(PodScript(run=0.05))
    await site.jobs.submit(msgspec.structs.replace(job(), code=code, tied=True))
    await wait_for_view(site, lambda view: view.finished)
    await site.client.get(CONFIG_MAPS, "job-code", namespace=site.space)
    await site.client.get(LEASES, "job-submitter", namespace=site.space)
    await site.jobs.remove("job")

    async def objects_are_gone() -> bool:
        existing = 0
        for resource, name in ((CONFIG_MAPS, "job-code"), (LEASES, "job-submitter")):
            try:
                await site.client.get(resource, name, namespace=site.space)
                existing += 1
            except NotFound:
                continue
        return not existing

    await eventually(objects_are_gone)


async def test_a_rejected_submission_leaves_no_objects(
    fake_site: JobNamespace, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("x")
    fake_site.fake.faults.append(ApiFault(verb="create", resource="pytorchjobs", status=403))
    sent = msgspec.structs.replace(job(), code={"train.py": tmp_path / "train.py"})
    with pytest.raises(Exception, match="injected fault"):
        await fake_site.jobs.submit(sent)
    with pytest.raises(NotFound):
        await fake_site.client.get(CONFIG_MAPS, "job-code", namespace=fake_site.space)


async def test_a_job_is_rolled_back_if_its_code_cannot_be_owned(
    fake_site: JobNamespace, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("x")
    fake_site.fake.faults.append(ApiFault(verb="patch", resource="configmaps", status=403))
    sent = msgspec.structs.replace(job(), code={"train.py": tmp_path / "train.py"})
    with pytest.raises(Forbidden):
        await fake_site.jobs.submit(sent)
    assert await fake_site.jobs.names() == []
    with pytest.raises(NotFound):
        await fake_site.client.get(CONFIG_MAPS, "job-code", namespace=fake_site.space)


@pytest.mark.parametrize("after", [True, False])
async def test_submission_is_atomic_even_if_the_response_is_lost(
    fake_site: JobNamespace, tmp_path: Path, after: bool
) -> None:
    (tmp_path / "train.py").write_text("x")
    lost = ApiFault(verb="create", resource="pytorchjobs", drop=True, after=after)
    fake_site.fake.faults.append(lost)
    sent = msgspec.structs.replace(job(), code={"train.py": tmp_path / "train.py"})
    with nullcontext() if after else pytest.raises(ConnectionLost):
        await fake_site.jobs.submit(sent)
    assert await fake_site.jobs.names() == (["job"] if after else [])
    maps = (await fake_site.client.list(CONFIG_MAPS, ListOptions(fake_site.space))).items
    assert [config_map["metadata"]["name"] for config_map in maps] == (
        ["job-code"] if after else []
    )


async def test_missing_crds_are_reported_with_an_install_hint() -> None:
    async with FakeKubernetes() as fake:
        jobs = KubernetesJobs(ClusterConfig(server=fake.url))
        with pytest.raises(OutsideError, match="has no CRDs of kubeflow") as caught:
            await jobs.submit(job())
        assert "danlu operator manifests" in caught.value.hint
        with pytest.raises(OutsideError):
            await jobs.names()


async def test_the_submitters_lease_is_renewed_until_it_is_deleted(site: JobNamespace) -> None:
    await site.jobs.submit(msgspec.structs.replace(job(), tied=True))
    ties = LeaseRenewer(site.client.config, every=0.02)
    ties.add(site.space, "job-submitter")
    first = (await site.client.get(LEASES, "job-submitter", namespace=site.space))["spec"][
        "renewTime"
    ]

    async def lease_is_newer() -> bool:
        result = await site.client.get(LEASES, "job-submitter", namespace=site.space)
        return bool(result["spec"]["renewTime"] != first)

    await eventually(lease_is_newer)
    await site.client.delete(LEASES, "job-submitter", namespace=site.space)

    async def is_released() -> bool:
        return not ties.leases

    await eventually(is_released)


async def test_a_pending_replica_shows_the_clusters_reason_verbatim(site: JobNamespace) -> None:
    site.behave(
        PodScript(unschedulable="0/3 nodes are available: 3 Insufficient cpu."), "job-worker-0"
    )
    site.behave(PodScript(waiting="ErrImagePull"), "job-worker-1")
    await site.jobs.submit(job(workers=2))

    early = (
        "",
        "waiting for the scheduler",
        "the pod has not been created yet",
        "scheduled, waiting for the kubelet",
    )
    view = await wait_for_view(
        site, lambda view: all(replica.waits not in early for replica in view.replicas)
    )
    first, second = view.replicas
    assert first.waits == "Unschedulable: 0/3 nodes are available: 3 Insufficient cpu."
    assert second.waits.startswith("ErrImagePull: cannot pull the image")
    assert view.warnings == (
        f"{first.waits} (request less, make room on a node, or limit the wait with --deadline)",
    )


async def test_a_warning_event_explains_a_container_that_is_not_created(site: JobNamespace) -> None:
    site.behave(PodScript(start=None))
    await site.jobs.submit(job())
    await wait_for_view(site, lambda view: view.replicas[0].waits.startswith("ContainerCreating: "))
    pod = await site.client.get(PODS, "job-worker-0", namespace=site.space)
    about = {"kind": "Pod", "name": "job-worker-0", "namespace": site.space}
    event = {
        "metadata": {"name": "one", "namespace": site.space},
        "involvedObject": {**about, "uid": pod["metadata"]["uid"]},
        "type": "Warning",
        "reason": "FailedMount",
        "message": 'configmap "data" not found',
    }
    await site.client.create(EVENTS, EVENTS.to_manifest(event))
    (replica,) = (await site.jobs.view("job")).replicas
    assert replica.waits == 'ContainerCreating: FailedMount: configmap "data" not found'


@pytest.fixture
async def jobs_without_operator(clock: VirtualClock) -> AsyncIterator[KubernetesJobs]:
    """A cluster with danlu's kinds and one job, but no operator."""
    async with FakeKubernetes(now=clock.now) as fake:
        access = ClusterConfig(server=fake.url)
        async with Client(access) as client:
            for crd in custom_resource_definitions((*BUILT_IN_FRAMEWORKS, TRAIN_JOB)):
                await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd)
        jobs = KubernetesJobs(access, clock=clock)
        await jobs.submit(job())
        yield jobs


async def test_a_job_without_an_operator_has_a_warning(
    jobs_without_operator: KubernetesJobs, clock: VirtualClock
) -> None:
    assert (await jobs_without_operator.view("job")).warnings == ()
    await clock.advance(20)
    (warning,) = (await jobs_without_operator.view("job")).warnings
    assert "no operator has picked up the job" in warning


async def test_a_job_without_an_operator_can_be_stopped_and_removed(
    jobs_without_operator: KubernetesJobs, clock: VirtualClock
) -> None:
    await clock.advance(20)
    with anyio.fail_after(LIMIT):
        await jobs_without_operator.stop("job")
    assert (await jobs_without_operator.view("job")).state == "Stopped"
    await jobs_without_operator.remove("job")
    assert await jobs_without_operator.names() == []


def _forbid_resources(*plurals: str) -> list[ApiFault]:
    return [
        ApiFault(verb=verb, resource=plural, times=100, status=403)
        for plural in plurals
        for verb in ("get", "list")
    ]


async def test_forbidden_kinds_are_ignored(fake_site: JobNamespace) -> None:
    others = [
        framework.plural for framework in BUILT_IN_FRAMEWORKS if framework.kind != "PyTorchJob"
    ]
    fake_site.fake.faults += _forbid_resources(*others)
    await fake_site.jobs.submit(job())
    assert (await fake_site.jobs.view("job")).kind == "PyTorchJob"
    assert await fake_site.jobs.names() == ["job"]
    fake_site.fake.faults += _forbid_resources("pytorchjobs", TRAIN_JOB.plural)
    with pytest.raises(Forbidden):
        await fake_site.jobs.names()
    with pytest.raises(Forbidden):
        await fake_site.jobs.view("job")


async def test_the_replica_command_omits_the_prefix_that_copies_code(
    site: JobNamespace, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("x")
    sent = msgspec.structs.replace(job(), code={"train.py": tmp_path / "train.py"})
    await site.jobs.submit(sent)
    await wait_for_view(site, running(1))
    command = await site.jobs.command("job", worker())
    assert command.args == ("python", "train.py")
    assert command.directory == "/workspace"
    assert command.environment["PYTHONUNBUFFERED"] == "1"
    with pytest.raises(UsageError, match="has not run yet"):
        await site.jobs.command("job", worker(5))
