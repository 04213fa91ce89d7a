"""Submit jobs, and follow them until all have succeeded."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import anyio
import msgspec

from danlu.kube.client import Client
from danlu.kube.informer import Informer
from danlu.kube.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    PODS,
    SERVICES,
    Resource,
)
from danlu.kube.types import Manifest, Object
from danlu.kube.watch import ListOptions
from danlu.operator.crds import custom_resource_definitions
from danlu.operator.types import runtime_resource
from danlu.training.registry import TRAIN_JOB, list_kinds
from danlu.training.train_job.runtimes import bundled_runtime
from danlu.training.train_job.schema import RUNTIME_KINDS

__all__ = [
    "KINDS",
    "SPACE",
    "JobKind",
    "JobLatencies",
    "count",
    "following",
    "install",
    "list_objects",
    "submit",
    "until",
    "watch_resources",
]

SPACE = "bench"
_RUNTIME = "torch-distributed"
_IMAGE = "registry.example.org/team/train:1"
_LIMITS = {"cpu": "1", "memory": "1Gi"}
#: Labels with the name of a pod's job, of either kind.
_JOB_LABELS = ("training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name")
_CONNECTIONS = 20
_LIMIT = 900.0


class _JobCondition(msgspec.Struct, frozen=True, gc=False):
    type: str
    status: str = ""


class _JobStatus(msgspec.Struct, frozen=True, gc=False):
    conditions: tuple[_JobCondition, ...] = ()


class _PodStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


class _WatchedJob(Object, frozen=True, gc=False, rename="camel", omit_defaults=True):
    status: _JobStatus = _JobStatus()

    @property
    def has_succeeded(self) -> bool:
        return any(
            c.type in ("Succeeded", "Complete") and c.status == "True"
            for c in self.status.conditions
        )


class _WatchedPod(Object, frozen=True, gc=False, rename="camel", omit_defaults=True):
    status: _PodStatus = _PodStatus()


@dataclass
class JobLatencies:
    """When each job succeeded, and when the pod that decides did.

    That is the master of a PyTorchJob, and the last pod of a TrainJob.
    """

    jobs: dict[str, float] = field(default_factory=dict)
    pods: dict[str, float] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    @property
    def latencies(self) -> list[float]:
        """Seconds from the pod's event to the job's, as one observer sees both, sorted."""
        return sorted(self.jobs[name] - seen for name, seen in self.pods.items())

    def see_job(self, old: _WatchedJob | None, new: _WatchedJob | None) -> None:
        """Handle an event of a job."""
        if new is not None and new.has_succeeded:
            self.jobs.setdefault(new.metadata.name, time.monotonic())

    def see_pod(self, old: _WatchedPod | None, new: _WatchedPod | None) -> None:
        """Handle an event of a pod."""
        if new is None or new.status.phase != "Succeeded":
            return
        name, labels = new.metadata.name, new.metadata.labels
        job = next(labels[label] for label in _JOB_LABELS if label in labels)
        if name not in self._ended and (job not in name or "-worker-" not in name):
            self.pods[job] = time.monotonic()
        self._ended.add(name)


@asynccontextmanager
async def following(client: Client, *, pods: bool = False) -> AsyncIterator[JobLatencies]:
    """Follow all jobs, and with ``pods`` all pods, which costs the server more."""
    seen = JobLatencies()
    resources = [kind.resource.with_model(_WatchedJob) for kind in KINDS.values()]
    async with watch_resources(client, resources, seen.see_job), AsyncExitStack() as stack:
        if pods:
            watched = [PODS.with_model(_WatchedPod)]
            await stack.enter_async_context(watch_resources(client, watched, seen.see_pod))
        yield seen


@asynccontextmanager
async def watch_resources(
    client: Client,
    resources: Iterable[Resource[Any]],
    handler: Callable[[Any, Any], None] = lambda old, new: None,
) -> AsyncIterator[None]:
    """Watch resources, and call the handler for each change."""
    informers = [Informer(client, resource, ListOptions(SPACE)) for resource in resources]
    async with anyio.create_task_group() as group:
        for informer in informers:
            informer.add_event_handler(handler)
            group.start_soon(informer.run)
        for informer in informers:
            await informer.wait_for_cache_sync()
        yield
        group.cancel_scope.cancel()


async def install(client: Client) -> None:
    """Create the namespace, the CRDs, once these are established a runtime."""
    await client.create(NAMESPACES, NAMESPACES.to_manifest({"metadata": {"name": SPACE}}))
    made = custom_resource_definitions(list_kinds())
    for crd in made:
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, crd)

    async def crds_are_ready() -> bool:
        found = await client.list(CUSTOM_RESOURCE_DEFINITIONS)
        statuses = [crd.get("status", {}).get("conditions") or () for crd in found.items]
        established = [
            any(condition["type"] == "Established" for condition in conditions)
            for conditions in statuses
        ]
        return len(established) == len(made) and all(established)

    await until(crds_are_ready)
    runtime = bundled_runtime(_RUNTIME)
    assert runtime is not None
    await client.create(runtime_resource(RUNTIME_KINDS[0]), dict(runtime))


def _describe_pytorch_job(pods: int) -> Manifest:
    """Return the spec of a PyTorchJob of a master and workers."""

    def replicas(number: int) -> Manifest:
        container = {
            "name": "pytorch",
            "image": _IMAGE,
            "command": ["python", "train.py"],
            "resources": {"limits": _LIMITS},
        }
        template = {"spec": {"containers": [container]}}
        return {"replicas": number, "restartPolicy": "OnFailure", "template": template}

    specs = {"Master": replicas(1), "Worker": replicas(pods - 1)}
    return {"runPolicy": {"cleanPodPolicy": "None"}, "pytorchReplicaSpecs": specs}


def _describe_train_job(pods: int) -> Manifest:
    """Return the spec of a TrainJob with a pod on each node."""
    trainer = {
        "numNodes": pods,
        "image": _IMAGE,
        "command": ["torchrun", "train.py"],
        "resourcesPerNode": {"limits": _LIMITS},
    }
    return {"runtimeRef": {"name": _RUNTIME}, "trainer": trainer}


@dataclass(frozen=True)
class JobKind:
    """A kind of jobs, its spec for a number of pods, and the services of that many pods."""

    resource: Resource[Manifest]
    describe: Callable[[int], Manifest]
    count_services: Callable[[int], int]

    def manifest(self, name: str, pods: int) -> Manifest:
        """Return a job of ``pods`` pods."""
        metadata = {"name": name, "namespace": SPACE}
        return self.resource.to_manifest({"metadata": metadata, "spec": self.describe(pods)})


def _resource(group: str, version: str, kind: str) -> Resource[Manifest]:
    return Resource(group, version, f"{kind.lower()}s", kind, Manifest)


KINDS = {
    "PyTorchJob": JobKind(
        _resource("kubeflow.org", "v1", "PyTorchJob"), _describe_pytorch_job, lambda pods: pods
    ),
    "TrainJob": JobKind(
        _resource(*TRAIN_JOB.api_version.split("/"), TRAIN_JOB.kind),
        _describe_train_job,
        lambda pods: 1,
    ),
}


async def submit(
    client: Client, kinds: Sequence[JobKind], number: int, pods: int, *, pause: float = 0.0
) -> None:
    """Submit ``number`` jobs, of the kinds in turns, at once or with a pause between them."""
    numbers = iter(range(number))

    async def some() -> None:
        for index in numbers:
            kind = kinds[index % len(kinds)]
            await client.create(kind.resource, kind.manifest(f"job-{index}", pods))
            await anyio.sleep(pause)

    async with anyio.create_task_group() as group:
        for _ in range(1 if pause else _CONNECTIONS):
            group.start_soon(some)


async def count(client: Client, resource: Resource[Any]) -> int:
    """Count the objects of a kind without reading them."""
    page = await client.list_page(resource, ListOptions(SPACE), limit=1)
    return len(page.items) + page.remaining


async def list_objects(client: Client) -> list[tuple[str, dict[str, object]]]:
    """Return the pods, services and ConfigMaps of all jobs, in turns, as a client creates them."""
    found: list[list[tuple[str, dict[str, object]]]] = []
    for resource in (PODS, SERVICES, CONFIG_MAPS):
        path = resource.path(namespace=SPACE)
        listed = (await client.list(resource, ListOptions(SPACE))).items
        found.append([(path, _strip_metadata(resource, obj)) for obj in listed])
    return [entry for turn in zip_longest(*found) for entry in turn if entry is not None]


def _strip_metadata(resource: Resource[Manifest], obj: Manifest) -> dict[str, object]:
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    metadata = {name: obj["metadata"][name] for name in kept if name in obj["metadata"]}
    content = {name: obj[name] for name in ("spec", "data") if name in obj}
    if "spec" in content:
        content["spec"] = {key: obj["spec"][key] for key in obj["spec"] if key != "nodeName"}
    return resource.to_manifest({"metadata": metadata, **content})


async def until(
    claim: Callable[[], Awaitable[bool]], *, check: Callable[[], object] = lambda: None
) -> None:
    """Wait until the claim is true; ``check`` may raise while it is not."""
    with anyio.fail_after(_LIMIT):
        while not await claim():
            check()
            await anyio.sleep(0.1)
