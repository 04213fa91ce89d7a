"""TrainJobs of a cluster, run by danlu's operator or by Kubeflow Trainer, as other jobs are."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from danlu.errors import OutsideError, UsageError
from danlu.jobs.backends import list_views
from danlu.jobs.kubernetes.cluster_job import ClusterJob
from danlu.jobs.kubernetes.objects import JobObject, PodObject, job_resource
from danlu.jobs.kubernetes.runtimes import runtime_resource
from danlu.jobs.kubernetes.views import build_view
from danlu.jobs.report import summarize_job
from danlu.jobs.types import Submission
from danlu.kube.patch import merge_patch
from danlu.kube.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, PODS
from danlu.kube.types import Manifest
from danlu.training.frameworks.train_job import NODE
from danlu.training.registry import TRAIN_JOB
from danlu.training.train_job.reader import outline_train_job
from danlu.training.train_job.runtimes import bundled_runtime
from danlu.training.types import ReplicaId
from tests.fakes.kubernetes import ApiFault
from tests.fakes.kubernetes.pod_script import PodScript
from tests.jobs.kubernetes.support import (
    JobNamespace,
    job,
    lines_of,
    running,
    site_of,
    wait_for_view,
)
from tests.jobs.kubernetes.test_queues import (
    LOCAL_QUEUES,
    NO_QUOTA,
    PENDING,
    VOLCANO_QUEUES,
    WORKLOADS,
    create_queue,
    serve,
    set_workload,
    waits_for,
)

pytestmark = pytest.mark.anyio
TRAIN_JOBS = job_resource(TRAIN_JOB).with_model(dict[str, Any])
RUNTIME = "torch-distributed"


def node(index: int = 0) -> ReplicaId:
    return ReplicaId(NODE, index)


async def create_runtime(site: JobNamespace, *, nodes: int = 1, restarts: int = 0) -> None:
    """Create a runtime of the namespace, which no other test sees."""
    bundled = bundled_runtime(RUNTIME)
    assert bundled is not None
    spec = msgspec.json.decode(msgspec.json.encode(bundled["spec"]))
    spec["mlPolicy"]["numNodes"] = nodes
    template = spec["template"]["spec"]
    template["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] = 0
    template["failurePolicy"] = {"maxRestarts": restarts}
    labels = bundled["metadata"]["labels"]
    metadata = {"name": RUNTIME, "namespace": site.space, "labels": labels}
    resource = runtime_resource("TrainingRuntime")
    await site.client.create(resource, resource.to_manifest({"metadata": metadata, "spec": spec}))


async def create_job(site: JobNamespace, name: str = "job", **spec: Any) -> Manifest:
    """Create a TrainJob as kubectl does."""
    reference = {"runtimeRef": {"kind": "TrainingRuntime", "name": RUNTIME}}
    fields = {
        "metadata": {"name": name, "namespace": site.space},
        "spec": {**reference, "trainer": {"numNodes": 2}, **spec},
    }
    return await site.client.create(TRAIN_JOBS, TRAIN_JOBS.to_manifest(fields))


async def write_status(site: JobNamespace, **status: Any) -> None:
    patch = merge_patch({"status": status})
    place = {"namespace": site.space, "subresource": "status"}
    await site.client.patch(TRAIN_JOBS, "job", patch, **place)


@pytest.fixture
async def trainer_site() -> AsyncIterator[JobNamespace]:
    """A cluster whose TrainJobs nobody runs but the test, as Kubeflow Trainer and JobSet do."""
    async with site_of(operator=False) as site:
        yield site


async def create_pods(site: JobNamespace, *, nodes: int = 2) -> None:
    """Create the pods of a Job of a JobSet, which a ConfigMap stands for: they need an owner."""
    metadata: Manifest = {"generateName": "job-set-", "namespace": site.space}
    owner = await site.client.create(CONFIG_MAPS, CONFIG_MAPS.to_manifest({"metadata": metadata}))
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "job-node-0", "controller": True}
    for index in range(nodes):
        metadata = {
            "name": f"job-node-0-{index}-xyz",
            "namespace": site.space,
            "ownerReferences": [{**job, "uid": owner["metadata"]["uid"]}],
            "labels": {
                "jobset.sigs.k8s.io/jobset-name": "job",
                "jobset.sigs.k8s.io/replicatedjob-name": "node",
                "batch.kubernetes.io/job-completion-index": str(index),
            },
        }
        spec = {"restartPolicy": "Never", "containers": [{"name": "node", "image": "example/t:1"}]}
        await site.client.create(PODS, PODS.to_manifest({"metadata": metadata, "spec": spec}))


def condition(type: str, reason: str, message: str = "") -> Manifest:
    time = "2026-11-28T10:00:00Z"
    fields = {"type": type, "reason": reason, "message": message, "lastTransitionTime": time}
    return {**fields, "status": "True"}


# -- danlu's operator -----------------------------------------------------------------------------


async def test_a_train_job_is_listed_followed_and_removed(site: JobNamespace) -> None:
    site.behave(PodScript(run=0.1, log="epoch 1\n"))
    await create_runtime(site)
    await create_job(site)
    states = [view.state async for view in site.jobs.watch("job")]
    assert states[-1] == "Succeeded"
    (view,) = await list_views(site.jobs)
    assert (view.name, view.kind, view.state) == ("job", "TrainJob", "Succeeded")
    assert [str(replica.id) for replica in view.replicas] == ["node-0", "node-1"]
    lines = await lines_of(site)
    assert sorted((str(line.replica), line.data) for line in lines) == [
        ("node-0", b"epoch 1"),
        ("node-1", b"epoch 1"),
    ]
    command = await site.jobs.command("job", node(1))
    assert command.environment["PET_NODE_RANK"] == "1"
    await site.jobs.remove("job")
    assert await site.jobs.names() == []


async def test_the_nodes_are_those_of_the_runtime_that_the_job_started_with(
    site: JobNamespace,
) -> None:
    await create_runtime(site, nodes=3)
    await create_job(site, trainer={})
    await wait_for_view(site, running(3))
    patch = merge_patch({"spec": {"mlPolicy": {"numNodes": 1}}})
    resource = runtime_resource("TrainingRuntime")
    await site.client.patch(resource, RUNTIME, patch, namespace=site.space)
    assert len((await site.jobs.view("job")).replicas) == 3


async def test_a_train_job_is_suspended_resumed_and_stopped(site: JobNamespace) -> None:
    await create_runtime(site)
    await create_job(site, suspend=True)
    view = await wait_for_view(site, lambda view: view.state == "Suspended")
    assert [replica.waits for replica in view.replicas] == ["the job to be resumed"] * 2
    await site.jobs.suspend("job", suspended=False)
    await wait_for_view(site, running(2))
    with pytest.raises(UsageError, match="nodes cannot be changed"):
        await site.jobs.scale("job", replicas={"node": 3})
    await site.jobs.stop("job", grace=1)
    view = await site.jobs.view("job")
    assert (view.state, view.finished) == ("Stopped", True)


async def test_a_failed_train_job_has_a_first_failure(site: JobNamespace) -> None:
    site.behave(PodScript(run=0.05, exit_code=3, log="lost\n"))
    await create_runtime(site, restarts=1)
    await create_job(site, trainer={"numNodes": 1})
    view = await wait_for_view(site, lambda view: view.finished)
    summary = await summarize_job(site.jobs, view)
    assert (summary.state, str(summary.replica)) == ("Failed", "node-0")
    assert (summary.reason, summary.lines) == ("exit code 3", ("lost",))


async def test_a_missing_runtime_is_why_a_train_job_waits(site: JobNamespace) -> None:
    await create_job(site)
    view = await wait_for_view(
        site, lambda view: any("not found" in replica.waits for replica in view.replicas)
    )
    assert "TrainingRuntime torch-distributed not found" in view.replicas[0].waits
    assert len(view.replicas) == 2


def submission(name: str = "job", queue: str = "", **spec: Any) -> Submission:
    """Return a TrainJob as ``danlu train -f`` submits it."""
    reference = {"kind": "TrainingRuntime", "name": RUNTIME}
    spec = {"runtimeRef": reference, "trainer": {"numNodes": 2}, **spec}
    metadata: Manifest = {"name": name}
    if queue:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": queue}
        spec["suspend"] = True
    manifest = TRAIN_JOBS.to_manifest({"metadata": metadata, "spec": spec})
    outline = outline_train_job(manifest)
    return Submission(outline, Path("/project"), manifests=(manifest,), queue=queue)


async def test_a_submitted_train_job_is_what_kubectl_creates(site: JobNamespace) -> None:
    site.behave(PodScript(run=0.1))
    await create_runtime(site)
    await create_job(site, "created", suspend=True)
    await site.jobs.submit(submission("sent", suspend=True))
    created, sent = [
        await site.client.get(TRAIN_JOBS, name, namespace=site.space)
        for name in ("created", "sent")
    ]
    assert created["spec"] == sent["spec"]
    assert not {"labels", "annotations"} & set(sent["metadata"])
    await site.jobs.suspend("sent", suspended=False)
    view = await wait_for_view(site, lambda view: view.finished, name="sent")
    assert view.state == "Succeeded"


@pytest.mark.parametrize("site", [pytest.param("real", marks=pytest.mark.real)], indirect=True)
async def test_a_field_that_the_server_does_not_know_is_refused(site: JobNamespace) -> None:
    await create_runtime(site)
    with pytest.raises(OutsideError, match=r'unknown field "spec\.trainer\.numNode"'):
        await site.jobs.submit(submission(trainer={"numNode": 4}))
    assert await site.jobs.names() == []


async def test_a_train_job_waits_in_a_queue_of_kueue(fake_site: JobNamespace) -> None:
    site = fake_site
    await serve(site, WORKLOADS, LOCAL_QUEUES)
    await create_queue(site, LOCAL_QUEUES, "research")
    await create_runtime(site)
    await site.jobs.submit(submission(queue="research"))
    stored = await site.client.get(TRAIN_JOBS, "job", namespace=site.space)
    await set_workload(site, stored, PENDING)
    view = await wait_for_view(site, waits_for(NO_QUOTA))
    assert view.state == "Waiting"
    assert [listed.state for listed in await site.jobs.views()] == ["Waiting"]
    await site.jobs.suspend("job", suspended=True)
    workload = await site.client.get(WORKLOADS, "pytorchjob-job-1a2b3", namespace=site.space)
    assert workload["spec"]["active"] is False
    patch = merge_patch({"spec": {"suspend": False}})  # as Kueue admits it
    await site.client.patch(TRAIN_JOBS, "job", patch, namespace=site.space)
    await wait_for_view(site, running(2))


async def test_a_queue_of_volcano_is_left_to_the_runtime(fake_site: JobNamespace) -> None:
    await serve(fake_site, VOLCANO_QUEUES)
    await create_queue(fake_site, VOLCANO_QUEUES, "research")
    await create_runtime(fake_site)
    with pytest.raises(UsageError, match="research is a queue of Volcano"):
        await fake_site.jobs.submit(submission(queue="research"))


async def test_a_train_job_whose_creation_got_no_answer_is_found(fake_site: JobNamespace) -> None:
    await create_runtime(fake_site)
    fake_site.fake.faults.append(ApiFault("create", "trainjobs", drop=True, after=True))
    assert await fake_site.jobs.submit(submission()) == "job"


# -- Kubeflow Trainer -----------------------------------------------------------------------------


async def test_what_kubeflow_trainer_runs_is_shown_by_its_pods_and_conditions(
    trainer_site: JobNamespace,
) -> None:
    site = trainer_site
    site.behave(PodScript(log="epoch 1\n"))
    await create_runtime(site)
    await create_job(site)
    assert (await site.jobs.view("job")).state == "Pending"
    await create_pods(site)
    view = await wait_for_view(site, running(2))
    assert (view.state, view.warnings) == ("Running", ())
    assert {line.data for line in await lines_of(site)} == {b"epoch 1"}
    trainer = {"progressPercentage": 40, "lastUpdatedTime": "2026-11-28T10:00:00Z"}
    await write_status(site, trainerStatus={**trainer, "metrics": [{"name": "l", "value": "0.5"}]})
    (listed,) = await list_views(site.jobs)
    assert listed.progress is not None
    assert (listed.progress.percentage, listed.progress.metrics) == (40, {"l": 0.5})
    await write_status(site, conditions=[condition("Complete", "AllJobsCompleted")])
    view = await wait_for_view(site, lambda view: view.finished)
    assert view.state == "Succeeded"


async def test_the_first_failure_of_kubeflow_trainer_is_the_pod_that_ended_first(
    trainer_site: JobNamespace,
) -> None:
    site = trainer_site
    site.behave(PodScript(run=0.05, exit_code=3, log="lost\n"), "job-node-0-1-xyz")
    await create_job(site)
    await create_pods(site)
    await wait_for_view(
        site, lambda view: any(replica.state == "Failed" for replica in view.replicas)
    )
    await write_status(site, conditions=[condition("Failed", "FailedJobs", "jobset failed")])
    view = await wait_for_view(site, lambda view: view.finished)
    summary = await summarize_job(site.jobs, view)
    assert (str(summary.replica), summary.reason, summary.lines) == (
        "node-1",
        "exit code 3",
        ("lost",),
    )


def pod_of(owner: Mapping[str, Any], created: str, set_name: str = "job") -> PodObject:
    labels = {"jobset.sigs.k8s.io/jobset-name": set_name}
    owners = [{"apiVersion": "batch/v1", "name": "job-node-0", "controller": True, **owner}]
    metadata = {"creationTimestamp": created, "labels": labels, "ownerReferences": owners}
    return msgspec.convert({"metadata": metadata}, PodObject)


def test_pods_of_a_train_job_are_its_own_or_those_of_jobs_created_since() -> None:
    began = "2026-11-28T10:00:00Z"
    metadata = {"name": "job", "uid": "1", "creationTimestamp": began}
    found = ClusterJob(msgspec.convert({"metadata": metadata}, JobObject), TRAIN_JOB)
    of_job = {"kind": "Job", "uid": "2"}
    own = [
        pod_of({"kind": "TrainJob", "uid": "1"}, began),
        pod_of(of_job, "2026-11-28T10:00:01Z"),
    ]
    others = [
        pod_of({"kind": "TrainJob", "uid": "0"}, began),
        pod_of(of_job, "2026-11-28T09:59:59Z"),  # of an earlier TrainJob of this name
        pod_of(of_job, began, set_name="other"),
        pod_of({"kind": "ReplicaSet", "uid": "3"}, began),
    ]
    assert found.select_pods([*others, *own]) == own


async def test_without_a_readable_runtime_the_replicas_are_those_with_pods(
    trainer_site: JobNamespace,
) -> None:
    site = trainer_site
    await create_job(site, runtimeRef={"name": "nowhere"})
    assert [str(each.id) for each in (await site.jobs.view("job")).replicas] == ["node-0", "node-1"]
    await create_pods(site, nodes=3)
    await wait_for_view(site, running(3))


async def test_a_huge_number_of_nodes_keeps_nobody_waiting(trainer_site: JobNamespace) -> None:
    await create_runtime(trainer_site)
    await create_job(trainer_site, trainer={"numNodes": 2**31 - 1})
    (view,) = await list_views(trainer_site.jobs)
    assert len(view.replicas) == 10_000
    assert view.warnings[0] == "only the first 10000 of 2147483647 replicas are shown"


async def test_a_train_job_of_another_controller_is_left_to_it(trainer_site: JobNamespace) -> None:
    await create_job(trainer_site, managedBy="kueue.x-k8s.io/multikueue")
    view = await trainer_site.jobs.view("job")
    assert view.warnings == (
        "the job is left to another controller (managedBy: kueue.x-k8s.io/multikueue)",
    )


async def test_an_invalid_status_hides_no_jobs(trainer_site: JobNamespace) -> None:
    site = trainer_site
    await create_job(site)
    metrics = [{"name": "\x1b[2J", "value": "high"}]
    trainer = {"metrics": metrics, "lastUpdatedTime": "2026-11-28T10:00:00Z"}
    await write_status(site, danlu={"conditions": "\x1b[2J"}, trainerStatus=trainer)
    (view,) = await list_views(site.jobs)
    assert (view.state, view.progress and view.progress.metrics) == ("Pending", {})


def _list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _list_paths(value[key], (*path, key))


HOSTILE: dict[str, Any] = {
    "metadata": {"name": "job", "uid": "1"},
    "spec": {
        "runtimeRef": {"name": RUNTIME, "kind": "ClusterTrainingRuntime"},
        "trainer": {"numNodes": 2, "resourcesPerNode": {"limits": {"cpu": "1"}}},
        "runtimePatches": [
            {
                "manager": "example.com/queue",
                "trainingRuntimeSpec": {
                    "template": {"spec": {"replicatedJobs": [{"name": "node", "template": {}}]}}
                },
            }
        ],
    },
    "status": {
        "conditions": [condition("Complete", "AllJobsCompleted")],
        "trainerStatus": {
            "lastUpdatedTime": "2026-11-28T10:00:00Z",
            "metrics": [{"name": "loss", "value": "1"}],
        },
    },
}


@pytest.mark.parametrize("junk", [None, -1, 2**40, "", "\x1b[2J", [], {}, [None], [{}], {"a": 1}])
@pytest.mark.parametrize("field", ["spec", "status"])
def test_a_job_is_shown_whatever_a_field_contains(field: str, junk: Any) -> None:
    for path in _list_paths(HOSTILE[field]):
        document = copy.deepcopy(HOSTILE)
        place = document[field]
        for key in path[:-1]:
            place = place[key]
        if path:
            place[path[-1]] = junk
        found = ClusterJob(msgspec.convert(document, JobObject), TRAIN_JOB)
        view = build_view(found, pods=[], report=None, where="kubernetes", now=datetime.now(UTC))
        assert view.name == "job", path


# -- next to other kinds --------------------------------------------------------------------------


async def test_jobs_of_one_name_are_told_apart_by_their_kind(trainer_site: JobNamespace) -> None:
    site = trainer_site
    await site.jobs.submit(job())
    await create_job(site)
    assert sorted(await site.jobs.names()) == ["pytorchjob/job", "trainjob/job"]
    assert {view.name for view in await list_views(site.jobs)} == {*await site.jobs.names()}
    with pytest.raises(UsageError, match="several jobs called job: PyTorchJob and TrainJob") as e:
        await site.jobs.view("job")
    assert e.value.hint == "add its kind: pytorchjob/job or trainjob/job"
    view = await site.jobs.view("trainjob/job")
    assert (view.name, view.kind) == ("trainjob/job", "TrainJob")
    await site.jobs.suspend("trainjob/job", suspended=True)
    assert (await site.client.get(TRAIN_JOBS, "job", namespace=site.space))["spec"]["suspend"]
    with pytest.raises(UsageError, match="job 'tfjob/job' not found"):
        await site.jobs.view("tfjob/job")


async def test_without_permission_for_train_jobs_others_are_listed_with_a_warning(
    fake_site: JobNamespace,
) -> None:
    await fake_site.jobs.submit(job())
    fake_site.fake.faults.append(ApiFault("list", "trainjobs", times=100, status=403))
    warnings: list[str] = []
    assert [view.name for view in await list_views(fake_site.jobs, warnings.append)] == ["job"]
    assert warnings == [
        "jobs are missing: no permission to list trainjobs.trainer.kubeflow.org in namespace"
        " default"
    ]


async def test_a_cluster_without_train_jobs_lists_others_in_silence(
    fake_site: JobNamespace,
) -> None:
    await fake_site.jobs.submit(job())
    for plural in ("trainjobs", "trainingruntimes", "clustertrainingruntimes"):
        name = f"{plural}.trainer.kubeflow.org"
        await fake_site.client.delete(CUSTOM_RESOURCE_DEFINITIONS, name)
    warnings: list[str] = []
    assert [view.name for view in await list_views(fake_site.jobs, warnings.append)] == ["job"]
    # Most users may not even ask for a kind that a cluster does not have.
    fake_site.fake.faults.append(ApiFault("list", "trainjobs", times=100, status=403))
    assert [view.name for view in await list_views(fake_site.jobs, warnings.append)] == ["job"]
    assert warnings == []


async def test_a_train_job_deleted_while_followed_ends_the_logs(trainer_site: JobNamespace) -> None:
    site = trainer_site
    await create_job(site)
    views = site.jobs.watch("job")
    assert (await anext(views)).state == "Pending"
    await site.client.delete(TRAIN_JOBS, "job", namespace=site.space)
    with pytest.raises(UsageError, match="job 'job' not found"):
        await anext(views)
