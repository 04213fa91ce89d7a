"""Jobs in queues of Kueue and Volcano, with the objects that Kueue 0.19 writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec
import pytest
from aiohttp import web

from danlu.errors import OutsideError, UsageError
from danlu.jobs.kubernetes.kueue import (
    QueuedWorkload,
    describe_admission,
    describe_evictions,
    find_position,
)
from danlu.jobs.types import JobView
from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from danlu.kube.errors import NotFound
from danlu.kube.patch import merge_patch
from danlu.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource
from danlu.kube.types import Manifest
from danlu.submission.job_from_options import apply_queue
from tests.fakes.kubernetes import ApiFault
from tests.jobs.kubernetes.support import LIMIT, JobNamespace, job, running, site_of, wait_for_view

pytestmark = pytest.mark.anyio

WORKLOADS = Resource("kueue.x-k8s.io", "v1beta1", "workloads", "Workload", Manifest)
LOCAL_QUEUES = Resource("kueue.x-k8s.io", "v1beta1", "localqueues", "LocalQueue", Manifest)
VOLCANO_QUEUES = Resource(
    "scheduling.volcano.sh", "v1beta1", "queues", "Queue", Manifest, namespaced=False
)
POD_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", Manifest)
PYTORCH_JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", Manifest)

# pkg/scheduler/scheduler_afs_test.go
NO_QUOTA = (
    "couldn't assign flavors to pod set worker: insufficient unused quota for cpu in flavor"
    " default, 4 more needed"
)
PREEMPTED = "Preempted to accommodate a workload (UID: 1, JobUID: 2) due to prioritization"


def condition(type: str, status: str, reason: str, message: str = "") -> Manifest:
    return {"type": type, "status": status, "reason": reason, "message": message}


PENDING = [condition("QuotaReserved", "False", "Pending", NO_QUOTA)]
EVICTED = [
    *PENDING,
    condition("Evicted", "True", "Preempted", PREEMPTED),
    condition("Preempted", "True", "InClusterQueue", PREEMPTED),
]


def workload(**fields: Any) -> QueuedWorkload:
    metadata = {"name": "pytorchjob-job-1a2b3", "namespace": "default"}
    spec = {"queueName": "research", **fields.pop("spec", {})}
    return msgspec.convert({"metadata": metadata, "spec": spec, **fields}, QueuedWorkload)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, "admission to queue lab: Kueue has not created a Workload for the job"),
        (workload(), "admission to queue research"),
        (workload(status={"conditions": PENDING}), f"admission to queue research: {NO_QUOTA}"),
        (workload(spec={"active": False}), "the job to be resumed"),
        (
            workload(
                status={
                    "conditions": [condition("QuotaReserved", "True", "QuotaReserved")],
                    "admissionChecks": [
                        {"name": "dws", "state": "Pending", "message": "no machine yet"},
                        {"name": "budget", "state": "Ready", "message": ""},
                    ],
                }
            ),
            "admission to queue research: check dws is Pending: no machine yet",
        ),
    ],
)
def test_admission_in_words(found: QueuedWorkload | None, expected: str) -> None:
    assert describe_admission(found, "lab") == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, ""),
        ({"conditions": EVICTED}, f"evicted by Kueue (Preempted): {PREEMPTED}"),
        (
            {
                "conditions": [condition("Evicted", "False", "QuotaReserved")],
                "schedulingStats": {
                    "evictions": [
                        {"reason": "Preempted", "underlyingCause": "", "count": 2},
                        {"reason": "Preempted", "underlyingCause": "X", "count": 1},
                        {"reason": "Deactivated", "underlyingCause": "", "count": 1},
                    ]
                },
            },
            "evicted by Kueue (Preempted 3 times)",
        ),
        ({"conditions": [condition("Evicted", "True", "Deactivated", "by a user")]}, ""),
    ],
)
def test_evictions_in_words(status: Manifest, expected: str) -> None:
    assert describe_evictions(workload(status=status)) == expected


async def test_the_position_is_that_of_the_visibility_api() -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if "v1beta2" in request.path:
            raise web.HTTPNotFound
        items = [
            {"metadata": {"name": name}, "positionInLocalQueue": place}
            for place, name in enumerate(["other", "pytorchjob-job-1a2b3"])
        ]
        return web.json_response({"kind": "PendingWorkloadsSummary", "items": items})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        async with Client(ClusterConfig(server=f"http://127.0.0.1:{port}")) as client:
            assert await find_position(client, workload(status={"conditions": PENDING})) == 2
            assert await find_position(client, workload(spec={"active": False})) is None
    finally:
        await runner.cleanup()
    path = "/apis/visibility.kueue.x-k8s.io/{}/namespaces/default/localqueues/research/{}"
    assert asked == [path.format(version, "pendingworkloads") for version in ("v1beta2", "v1beta1")]


# -- with a cluster -------------------------------------------------------------------------------


async def serve(site: JobNamespace, *resources: Resource[Manifest]) -> None:
    """Serve kinds, whatever their objects contain."""
    for resource in resources:
        crd = {
            "metadata": {"name": resource.display_name},
            "spec": {
                "group": resource.group,
                "scope": "Namespaced" if resource.namespaced else "Cluster",
                "names": {
                    "plural": resource.plural,
                    "singular": resource.kind.lower(),
                    "kind": resource.kind,
                },
                "versions": [
                    {
                        "name": resource.version,
                        "served": True,
                        "storage": True,
                        "schema": {
                            "openAPIV3Schema": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                            }
                        },
                    }
                ],
            },
        }
        await site.client.create(
            CUSTOM_RESOURCE_DEFINITIONS, CUSTOM_RESOURCE_DEFINITIONS.to_manifest(crd)
        )
        with anyio.fail_after(LIMIT):
            while not await _is_served(site, resource):
                await anyio.sleep(0.05)


async def _is_served(site: JobNamespace, resource: Resource[Manifest]) -> bool:
    try:
        await site.client.list_page(resource, limit=1)
    except NotFound:
        return False
    return True


async def submit_to(site: JobNamespace, queue: str) -> Manifest:
    """Submit the job as ``--queue`` does, and return it as stored."""
    plain = job(restart="OnFailure", policy={"backoffLimit": 0})
    queued = msgspec.structs.replace(plain, job=apply_queue(plain.job, queue), queue=queue)
    await site.jobs.submit(queued)
    return await site.client.get(PYTORCH_JOBS, "job", namespace=site.space)


async def create_queue(site: JobNamespace, resource: Resource[Manifest], name: str) -> None:
    place = {"namespace": site.space} if resource.namespaced else {}
    await site.client.create(resource, resource.to_manifest({"metadata": {"name": name, **place}}))


async def set_workload(site: JobNamespace, stored: Manifest, conditions: list[Manifest]) -> None:
    """Write the Workload of a job as Kueue does."""
    manifest = {
        "metadata": {
            "name": "pytorchjob-job-1a2b3",
            "namespace": site.space,
            "labels": {"kueue.x-k8s.io/job-uid": stored["metadata"]["uid"]},
        },
        "spec": {"queueName": "research", "active": True},
        "status": {"conditions": conditions},
    }
    await site.client.create_or_patch(WORKLOADS, WORKLOADS.to_manifest(manifest))


async def set_suspend(site: JobNamespace, suspended: bool) -> None:
    patch = merge_patch({"spec": {"runPolicy": {"suspend": suspended}}})
    await site.client.patch(PYTORCH_JOBS, "job", patch, namespace=site.space)


def waits_for(text: str) -> Any:
    def wanted(view: JobView) -> bool:
        return any(text in replica.waits for replica in view.replicas)

    return wanted


async def test_a_job_waits_in_its_queue_and_preemption_is_no_failure(
    fake_site: JobNamespace,
) -> None:
    site = fake_site
    await serve(site, WORKLOADS, LOCAL_QUEUES)
    await create_queue(site, LOCAL_QUEUES, "research")
    stored = await submit_to(site, "research")
    assert stored["spec"]["runPolicy"]["suspend"] is True

    await set_workload(site, stored, PENDING)
    view = await wait_for_view(site, waits_for(NO_QUOTA))
    assert view.state == "Waiting"
    assert view.replicas[0].waits == f"admission to queue research: {NO_QUOTA}"
    assert [listed.state for listed in await site.jobs.views()] == ["Waiting"]

    await set_suspend(site, False)  # admitted
    await wait_for_view(site, running(1))
    await set_workload(site, stored, EVICTED)
    await set_suspend(site, True)
    view = await wait_for_view(site, lambda view: view.state == "Waiting")
    assert view.warnings == (f"evicted by Kueue (Preempted): {PREEMPTED}",)

    await set_suspend(site, False)
    view = await wait_for_view(site, running(1))
    # The backoff limit is 0: a failure would have ended the job.
    assert (view.finished, view.replicas[0].restarts) == (False, 0)


async def test_users_suspend_and_stop_a_queued_job_by_its_workload(fake_site: JobNamespace) -> None:
    site = fake_site
    await serve(site, WORKLOADS, LOCAL_QUEUES)
    await create_queue(site, LOCAL_QUEUES, "research")
    stored = await submit_to(site, "research")
    await set_workload(site, stored, PENDING)

    async def is_active() -> bool:
        found = await site.client.get(WORKLOADS, "pytorchjob-job-1a2b3", namespace=site.space)
        return bool(found["spec"]["active"])

    await site.jobs.suspend("job", suspended=True)
    assert not await is_active()
    view = await site.jobs.view("job")
    assert view.replicas[0].waits == "the job to be resumed"
    await site.jobs.suspend("job", suspended=False)
    assert await is_active()
    # Kueue alone resumes a job.
    stored = await site.client.get(PYTORCH_JOBS, "job", namespace=site.space)
    assert stored["spec"]["runPolicy"]["suspend"] is True
    await site.jobs.stop("job", grace=0)
    assert not await is_active()
    assert (await site.jobs.view("job")).state == "Stopped"


async def test_a_queued_job_is_not_stopped_without_the_right_to_its_workload(
    fake_site: JobNamespace,
) -> None:
    await serve(fake_site, WORKLOADS, LOCAL_QUEUES)
    await create_queue(fake_site, LOCAL_QUEUES, "research")
    stored = await submit_to(fake_site, "research")
    await set_workload(fake_site, stored, PENDING)
    fake_site.fake.faults.append(ApiFault(verb="patch", resource="workloads", status=403, times=2))
    with pytest.raises(OutsideError, match="Kueue would resume it"):
        await fake_site.jobs.stop("job", grace=0)
    assert (await fake_site.jobs.view("job")).state == "Waiting"


async def test_a_queue_of_volcano_is_that_of_the_pod_group(fake_site: JobNamespace) -> None:
    await serve(fake_site, VOLCANO_QUEUES)
    await create_queue(fake_site, VOLCANO_QUEUES, "research")
    stored = await submit_to(fake_site, "research")
    assert stored["spec"]["runPolicy"]["schedulingPolicy"] == {"queue": "research"}
    assert not stored["spec"]["runPolicy"].get("suspend")
    assert not stored["metadata"].get("labels")


@pytest.fixture
async def site_without_operator() -> AsyncIterator[JobNamespace]:
    """A cluster where no pods are created."""
    async with site_of(operator=False) as site:
        yield site


async def test_a_job_without_pods_says_what_its_pod_group_waits_for(
    site_without_operator: JobNamespace,
) -> None:
    site = site_without_operator
    await serve(site, POD_GROUPS)
    await site.jobs.submit(job())
    # The condition of Volcano 1.9 for a queue that is full.
    message = "queue resource quota insufficient: insufficient nvidia.com/gpu"
    group = {
        "metadata": {"name": "job", "namespace": site.space},
        "spec": {"queue": "research"},
        "status": {
            "phase": "Pending",
            "conditions": [condition("Unschedulable", "True", "NotEnoughResources", message)],
        },
    }
    await site.client.create(POD_GROUPS, POD_GROUPS.to_manifest(group))
    view = await wait_for_view(site, waits_for("PodGroup"))
    assert view.replicas[0].waits.endswith(
        f"its PodGroup waits for queue research of Volcano: {message}"
    )


async def test_an_unknown_queue_is_refused_with_those_that_exist(fake_site: JobNamespace) -> None:
    with pytest.raises(UsageError, match="queue 'lab' not found in namespace default") as error:
        await submit_to(fake_site, "lab")
    assert error.value.hint is not None
    assert "no queues of Kueue" in error.value.hint
    await serve(fake_site, LOCAL_QUEUES, VOLCANO_QUEUES)
    await create_queue(fake_site, LOCAL_QUEUES, "research")
    await create_queue(fake_site, VOLCANO_QUEUES, "batch")
    with pytest.raises(UsageError) as error:
        await submit_to(fake_site, "lab")
    assert error.value.hint == "existing queues: batch, research"
    assert await fake_site.jobs.names() == []


async def test_queues_that_may_not_be_listed_are_taken_for_existing(
    fake_site: JobNamespace,
) -> None:
    await serve(fake_site, LOCAL_QUEUES)
    fake_site.fake.faults.append(ApiFault(verb="list", resource="localqueues", status=403))
    stored = await submit_to(fake_site, "research")
    assert stored["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "research"}
