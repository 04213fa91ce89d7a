"""Whose a pod is: adopted, released, in the way; decorated before it is made; refused."""

from __future__ import annotations

import pytest

from danlu.kube.manager import Manager
from danlu.kube.patches import merge_patch
from danlu.kube.resources import PODS
from danlu.kube.types import Document
from danlu.operator.types import DecoratorFailed
from danlu.training.framework import Framework
from danlu.training.manifest import read_job
from danlu.training.registry import framework_of
from danlu.training.rendering import render_pod
from danlu.training.topology import ServiceTopology
from danlu.training.types import ReplicaId, ReplicaType
from tests.operator.site import Site, jobs
from tests.training.manifests import manifest

pytestmark = pytest.mark.anyio
PYTORCH: Framework = framework_of("PyTorchJob")


def orphan(site: Site, name: str = "job") -> Document:
    """A pod as the job's worker 0 has it, owned by nobody."""
    document = manifest("PyTorchJob", Worker=1)
    document["metadata"] = {"name": name, "namespace": site.space}
    job = read_job(document, PYTORCH)
    replica = ReplicaId(ReplicaType("Worker"), 0)
    return render_pod(job, PYTORCH, replica, ServiceTopology(job))


async def owner(site: Site, name: str) -> str:
    owners = (await site.pod(name))["metadata"].get("ownerReferences") or [{"uid": ""}]
    return str(owners[0]["uid"])


async def test_an_orphan_with_the_jobs_labels_is_adopted(site: Site, operator: Manager) -> None:
    await site.client.create(PODS, orphan(site))
    before = await site.uid("job-worker-0")
    job = await site.submit(Worker=1)

    async def adopted() -> bool:
        return await owner(site, "job-worker-0") == str(job["metadata"]["uid"])

    await site.eventually(adopted)
    await site.run()
    await site.until("Running")
    assert await site.uid("job-worker-0") == before


async def test_a_pod_that_loses_the_labels_is_released_and_made_again_when_its_name_is_free(
    site: Site, operator: Manager
) -> None:
    await site.submit(Worker=1)
    await site.until_pods("job-worker-0")
    await site.run()
    await site.until("Running")
    before = await site.uid("job-worker-0")
    labels = {"training.kubeflow.org/operator-name": "mine"}
    patch = merge_patch({"metadata": {"labels": labels}})
    await site.client.patch(PODS, "job-worker-0", patch, namespace=site.space)

    async def released() -> bool:
        return await owner(site, "job-worker-0") == ""

    await site.eventually(released)
    await site.until_event("FailedCreatePod")
    await site.delete("job-worker-0")
    await site.until_made_again("job-worker-0", before)


async def test_a_name_that_another_has_is_waited_for_and_told_of(
    site: Site, operator: Manager
) -> None:
    foreign = orphan(site)
    foreign["metadata"]["labels"] = {"app": "other"}
    await site.client.create(PODS, foreign)
    before = await site.uid("job-worker-0")
    await site.submit(Worker=1)
    assert "Pod job-worker-0 is there already" in await site.until_event("FailedCreatePod")
    assert await site.uid("job-worker-0") == before
    await site.delete("job-worker-0")
    await site.until_made_again("job-worker-0", before)


async def test_an_index_that_a_job_never_had_is_not_taken_for_a_replica(
    site: Site, operator: Manager
) -> None:
    await site.submit(Worker=1)
    await site.until_pods("job-worker-0")
    await site.run()
    await site.until("Running")
    stray = orphan(site)
    stray["metadata"]["name"] = "stray"
    stray["metadata"]["labels"]["training.kubeflow.org/replica-type"] = "evaluator"
    await site.client.create(PODS, stray)
    await site.pass_time(1)
    assert await site.state() == "Running"
    assert "stray" in await site.pods()


# -- decorated


class Marker:
    """Marks pods, as a decorator server would; refuses as long as it is told to."""

    def __init__(self) -> None:
        self.refuses = False
        self.jobs: list[str] = []

    async def __call__(self, job: Document, pod: Document) -> Document:
        self.jobs.append(job["metadata"]["name"])
        if self.refuses:
            raise DecoratorFailed("the decorator is not there")
        annotations = {**(pod["metadata"].get("annotations") or {}), "team": job["kind"]}
        return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}


async def test_pods_are_decorated_before_they_are_made(site: Site) -> None:
    async with site.operator_runs(decorators=[Marker()]):
        await site.submit(Worker=1)
        await site.until_pods("job-worker-0")
    pod = await site.pod("job-worker-0")
    assert pod["metadata"]["annotations"] == {"team": "PyTorchJob"}


async def test_a_pod_that_is_not_decorated_is_not_made_until_it_is(site: Site) -> None:
    marker = Marker()
    marker.refuses = True
    async with site.operator_runs(decorators=[marker]):
        await site.submit(Worker=1)
        assert "the decorator is not there" in await site.until_event("FailedCreatePod")
        assert await site.pods() == []
        marker.refuses = False
        await site.until_pods("job-worker-0")


# -- refused


async def test_a_job_that_is_no_valid_manifest_fails_with_all_findings(
    site: Site, operator: Manager
) -> None:
    # A volume that is not there: no schema of a definition finds it.
    container = {"name": "pytorch", "image": "example/train:1"}
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]  # type: ignore[assignment]
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    await site.submit(spec={"pytorchReplicaSpecs": {"Worker": worker}})
    status = await site.until("Failed")
    (failed,) = status["conditions"]
    assert failed["reason"] == "PyTorchJobFailedValidation"
    assert "there is no volume 'data'" in failed["message"]
    assert status["completionTime"]
    assert await site.pods() == []
    assert "there is no volume 'data'" in await site.until_event("PyTorchJobFailedValidation")


async def test_an_invalid_job_of_another_manager_is_left_alone(
    site: Site, operator: Manager
) -> None:
    container = {"name": "pytorch", "image": "example/train:1"}
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]  # type: ignore[assignment]
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    await site.submit(
        run={"managedBy": "kueue.x-k8s.io/multikueue"},
        spec={"pytorchReplicaSpecs": {"Worker": worker}},
    )
    await site.submit("PyTorchJob", "ours", Worker=1)
    await site.until_pods("ours-worker-0")
    assert await site.status() == {}


async def test_a_job_that_has_begun_is_not_ended_by_a_mistake_in_an_edit(
    site: Site, operator: Manager
) -> None:
    await site.submit(Worker=1)
    await site.until_pods("job-worker-0")
    await site.run()
    await site.until("Running")
    replicas = (await site.job())["spec"]["pytorchReplicaSpecs"]
    (container,) = replicas["Worker"]["template"]["spec"]["containers"]
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    await site.change({"spec": {"pytorchReplicaSpecs": replicas}})
    await site.until_event("PyTorchJobFailedValidation")
    assert await site.state() == "Running"
    container.pop("volumeMounts")
    await site.change({"spec": {"pytorchReplicaSpecs": replicas}})
    await site.end()
    await site.until("Succeeded")


async def test_a_template_that_the_server_refuses_is_told_of(site: Site, operator: Manager) -> None:
    if site.fake is not None:
        pytest.skip("the fake knows less of pods than a server does")
    container: Document = {"name": "pytorch", "image": "example/train:1"}
    container["resources"] = {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    await site.submit(spec={"pytorchReplicaSpecs": {"Worker": worker}})
    assert "cpu limit" in await site.until_event("FailedCreatePod")
    assert await site.services() in ([], ["job-worker-0"])


@pytest.mark.timeout(120)
async def test_what_a_deleted_job_owned_goes_with_it(site: Site, operator: Manager) -> None:
    await site.submit(Worker=2)
    await site.until_services("job-worker-0", "job-worker-1")
    await site.client.delete(jobs("PyTorchJob"), "job", namespace=site.space)
    await site.until_collected()
