"""Owners of pods: adoption, release, name conflicts, decorated and rejected pods."""

from __future__ import annotations

import pytest

from danlu.kube.manager import Manager
from danlu.kube.patch import merge_patch
from danlu.kube.resources import PODS
from danlu.kube.types import Manifest
from danlu.operator.types import DecoratorError
from danlu.training.framework import Framework
from danlu.training.manifest import read_job
from danlu.training.registry import find_framework
from danlu.training.rendering import render_pod
from danlu.training.topology import ServiceTopology
from danlu.training.types import ReplicaId, ReplicaType
from tests.operator.operator_namespace import OperatorNamespace, jobs
from tests.training.manifests import manifest

pytestmark = pytest.mark.anyio
PYTORCH: Framework = find_framework("PyTorchJob")


def orphan(site: OperatorNamespace, name: str = "job") -> Manifest:
    """Return a pod like the job's worker 0, without an owner."""
    document = manifest("PyTorchJob", Worker=1)
    document["metadata"] = {"name": name, "namespace": site.space}
    job = read_job(document, PYTORCH)
    replica = ReplicaId(ReplicaType("Worker"), 0)
    return render_pod(job, PYTORCH, replica, ServiceTopology(job, PYTORCH))


async def owner(site: OperatorNamespace, name: str) -> str:
    owners = (await site.pod(name))["metadata"].get("ownerReferences") or [{"uid": ""}]
    return str(owners[0]["uid"])


async def test_an_orphan_with_the_jobs_labels_is_adopted(
    site: OperatorNamespace, operator: Manager
) -> None:
    await site.client.create(PODS, orphan(site))
    before = await site.uid("job-worker-0")
    job = await site.submit(Worker=1)

    async def owner_is_job() -> bool:
        return await owner(site, "job-worker-0") == str(job["metadata"]["uid"])

    await site.eventually(owner_is_job)
    await site.run()
    await site.wait_for_state("Running")
    assert await site.uid("job-worker-0") == before


async def test_a_pod_that_loses_its_labels_is_released_and_recreated_when_its_name_is_free(
    site: OperatorNamespace, operator: Manager
) -> None:
    await site.submit(Worker=1)
    await site.wait_for_pods("job-worker-0")
    await site.run()
    await site.wait_for_state("Running")
    before = await site.uid("job-worker-0")
    labels = {"training.kubeflow.org/operator-name": "mine"}
    patch = merge_patch({"metadata": {"labels": labels}})
    await site.client.patch(PODS, "job-worker-0", patch, namespace=site.space)

    async def has_no_owner() -> bool:
        return await owner(site, "job-worker-0") == ""

    await site.eventually(has_no_owner)
    await site.wait_for_event("FailedCreatePod")
    await site.delete("job-worker-0")
    await site.wait_for_recreation("job-worker-0", before)


async def test_a_name_conflict_is_retried_and_recorded(
    site: OperatorNamespace, operator: Manager
) -> None:
    foreign = orphan(site)
    foreign["metadata"]["labels"] = {"app": "other"}
    await site.client.create(PODS, foreign)
    before = await site.uid("job-worker-0")
    await site.submit(Worker=1)
    assert "Pod job-worker-0 already exists" in await site.wait_for_event("FailedCreatePod")
    assert await site.uid("job-worker-0") == before
    await site.delete("job-worker-0")
    await site.wait_for_recreation("job-worker-0", before)


async def test_a_pod_with_an_unknown_index_is_not_a_replica(
    site: OperatorNamespace, operator: Manager
) -> None:
    await site.submit(Worker=1)
    await site.wait_for_pods("job-worker-0")
    await site.run()
    await site.wait_for_state("Running")
    stray = orphan(site)
    stray["metadata"]["name"] = "stray"
    stray["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "evaluator"
    await site.client.create(PODS, stray)
    await site.pass_time(1)
    assert await site.state() == "Running"
    assert "stray" in await site.pods()


# -- decorated


class MarkingDecorator:
    """Marks pods, as a decorator would; fails while `refuses` is set."""

    def __init__(self) -> None:
        self.refuses = False
        self.jobs: list[str] = []

    async def __call__(self, job: Manifest, pod: Manifest) -> Manifest:
        self.jobs.append(job["metadata"]["name"])
        if self.refuses:
            raise DecoratorError("the decorator is not there")
        annotations = {**(pod["metadata"].get("annotations") or {}), "team": job["kind"]}
        return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}


async def test_pods_are_decorated_before_they_are_created(site: OperatorNamespace) -> None:
    async with site.operator_runs(decorators=[MarkingDecorator()]):
        await site.submit(Worker=1)
        await site.wait_for_pods("job-worker-0")
    pod = await site.pod("job-worker-0")
    assert pod["metadata"]["annotations"] == {"team": "PyTorchJob"}


async def test_a_pod_is_not_created_until_it_is_decorated(site: OperatorNamespace) -> None:
    marker = MarkingDecorator()
    marker.refuses = True
    async with site.operator_runs(decorators=[marker]):
        await site.submit(Worker=1)
        assert "the decorator is not there" in await site.wait_for_event("FailedCreatePod")
        assert await site.pods() == []
        marker.refuses = False
        await site.wait_for_pods("job-worker-0")


# -- refused


async def test_an_invalid_job_fails_with_all_errors(
    site: OperatorNamespace, operator: Manager
) -> None:
    # A volume that is not there: no schema of a definition finds it.
    container = {"name": "pytorch", "image": "example/train:1"}
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]  # type: ignore[assignment]
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    await site.submit(spec={"pytorchReplicaSpecs": {"Worker": worker}})
    status = await site.wait_for_state("Failed")
    (failed,) = status["conditions"]
    assert failed["reason"] == "PyTorchJobFailedValidation"
    assert "volume 'data' not found" in failed["message"]
    assert status["completionTime"]
    assert await site.pods() == []
    assert "volume 'data' not found" in await site.wait_for_event("PyTorchJobFailedValidation")


async def test_an_invalid_job_managed_by_another_controller_is_ignored(
    site: OperatorNamespace, operator: Manager
) -> None:
    container = {"name": "pytorch", "image": "example/train:1"}
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]  # type: ignore[assignment]
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    await site.submit(
        run={"managedBy": "kueue.x-k8s.io/multikueue"},
        spec={"pytorchReplicaSpecs": {"Worker": worker}},
    )
    await site.submit("PyTorchJob", "ours", Worker=1)
    await site.wait_for_pods("ours-worker-0")
    assert await site.status() == {}


async def test_a_running_job_is_not_ended_by_an_invalid_edit(
    site: OperatorNamespace, operator: Manager
) -> None:
    await site.submit(Worker=1)
    await site.wait_for_pods("job-worker-0")
    await site.run()
    await site.wait_for_state("Running")
    replicas = (await site.job())["spec"]["pytorchReplicaSpecs"]
    (container,) = replicas["Worker"]["template"]["spec"]["containers"]
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    await site.change({"spec": {"pytorchReplicaSpecs": replicas}})
    await site.wait_for_event("PyTorchJobFailedValidation")
    assert await site.state() == "Running"
    container.pop("volumeMounts")
    await site.change({"spec": {"pytorchReplicaSpecs": replicas}})
    await site.end()
    await site.wait_for_state("Succeeded")


async def test_a_pod_that_the_server_rejects_is_recorded_as_an_event(
    site: OperatorNamespace, operator: Manager
) -> None:
    if site.fake is not None:
        pytest.skip("the fake API server does not validate pods completely")
    container: Manifest = {"name": "pytorch", "image": "example/train:1"}
    # Valid for danlu, which leaves a pod's DNS to the server.
    spec: Manifest = {"containers": [container], "dnsPolicy": "None"}
    worker = {"replicas": 1, "template": {"spec": spec}}
    await site.submit(spec={"pytorchReplicaSpecs": {"Worker": worker}})
    assert "dnsConfig" in await site.wait_for_event("FailedCreatePod")
    assert await site.services() in ([], ["job-worker-0"])


@pytest.mark.timeout(120)
async def test_the_objects_of_a_deleted_job_are_garbage_collected(
    site: OperatorNamespace, operator: Manager
) -> None:
    await site.submit(Worker=2)
    await site.wait_for_services("job-worker-0", "job-worker-1")
    await site.client.delete(jobs("PyTorchJob"), "job", namespace=site.space)
    await site.wait_for_collection()
