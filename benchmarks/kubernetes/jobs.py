"""Submit jobs, and follow them until all have succeeded."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec

from danlu.kube.client import Client
from danlu.kube.informer import Informer
from danlu.kube.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    PODS,
    SERVICES,
    Resource,
)
from danlu.kube.types import Manifest, Object
from danlu.kube.watch import ListOptions
from danlu.operator.crds import custom_resource_definitions
from danlu.training.registry import list_kinds

__all__ = ["SPACE", "JobLatencies", "count", "following", "install", "manifest", "submit", "until"]

SPACE = "bench"
JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", Manifest)
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
        return any(c.type == "Succeeded" and c.status == "True" for c in self.status.conditions)


class _WatchedPod(Object, frozen=True, gc=False, rename="camel", omit_defaults=True):
    status: _PodStatus = _PodStatus()


@dataclass
class JobLatencies:
    """When each job succeeded, and when its master's pod did."""

    jobs: dict[str, float] = field(default_factory=dict)
    masters: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    @property
    def latencies(self) -> list[float]:
        """Seconds from the pod's event to the job's, as one observer sees both, sorted."""
        return sorted(self.jobs[name] - seen for name, seen in self.masters.items())

    def see_job(self, old: _WatchedJob | None, new: _WatchedJob | None) -> None:
        """Handle an event of a job."""
        if new is not None and new.has_succeeded:
            self.jobs.setdefault(new.metadata.name, time.monotonic())

    def see_pod(self, old: _WatchedPod | None, new: _WatchedPod | None) -> None:
        """Handle an event of a pod."""
        if new is None or new.status.phase != "Succeeded":
            return
        name = new.metadata.name
        self.ended.add(name)
        if name.endswith("-master-0"):
            self.masters.setdefault(name.removesuffix("-master-0"), time.monotonic())


@asynccontextmanager
async def following(client: Client, *, pods: bool = False) -> AsyncIterator[JobLatencies]:
    """Follow all jobs, and with ``pods`` all pods, which costs the server more."""
    seen = JobLatencies()
    jobs = Informer(client, JOBS.with_model(_WatchedJob), ListOptions(SPACE))
    jobs.add_event_handler(seen.see_job)
    informers: list[Informer[Any]] = [jobs]
    if pods:
        informers.append(Informer(client, PODS.with_model(_WatchedPod), ListOptions(SPACE)))
        informers[-1].add_event_handler(seen.see_pod)
    async with anyio.create_task_group() as group:
        for informer in informers:
            group.start_soon(informer.run)
        for informer in informers:
            await informer.wait_for_cache_sync()
        yield seen
        group.cancel_scope.cancel()


async def install(client: Client) -> None:
    """Create the namespace and the CRDs, and wait until these are established."""
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


def manifest(name: str, workers: int) -> Manifest:
    """Return a PyTorchJob of a master and ``workers`` workers."""

    def replicas(number: int) -> Manifest:
        container = {
            "name": "pytorch",
            "image": "registry.example.org/team/train:1",
            "command": ["python", "train.py"],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
        }
        template = {"spec": {"containers": [container]}}
        return {"replicas": number, "restartPolicy": "OnFailure", "template": template}

    specs = {"Master": replicas(1), "Worker": replicas(workers)}
    return JOBS.to_manifest(
        {
            "metadata": {"name": name, "namespace": SPACE},
            "spec": {"runPolicy": {"cleanPodPolicy": "None"}, "pytorchReplicaSpecs": specs},
        }
    )


async def submit(client: Client, number: int, *, first: int = 0, pause: float = 0.0) -> None:
    """Submit ``number`` jobs of a master and two workers, at once or with a pause between them."""
    names = iter([f"job-{n}" for n in range(first, first + number)])

    async def some() -> None:
        for name in names:
            await client.create(JOBS, manifest(name, 2))
            await anyio.sleep(pause)

    async with anyio.create_task_group() as group:
        for _ in range(1 if pause else _CONNECTIONS):
            group.start_soon(some)


async def count(client: Client, resource: Resource[Any]) -> int:
    """Count the objects of a kind without reading them."""
    page = await client.list_page(resource, ListOptions(SPACE), limit=1)
    return len(page.items) + page.remaining


async def pods_and_services(client: Client) -> list[tuple[str, dict[str, object]]]:
    """Return the existing pods and services, alternating, as a client would create them."""
    found: list[list[tuple[str, dict[str, object]]]] = []
    for resource in (PODS, SERVICES):
        path = resource.path(namespace=SPACE)
        listed = (await client.list(resource, ListOptions(SPACE))).items
        found.append([(path, _strip_metadata(resource, obj)) for obj in listed])
    return [entry for pair in zip(*found, strict=True) for entry in pair]


def _strip_metadata(resource: Resource[Manifest], obj: Manifest) -> dict[str, object]:
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    metadata = {name: obj["metadata"][name] for name in kept if name in obj["metadata"]}
    spec = {name: value for name, value in obj["spec"].items() if name != "nodeName"}
    return resource.to_manifest({"metadata": metadata, "spec": spec})


async def until(
    claim: Callable[[], Awaitable[bool]], *, check: Callable[[], object] = lambda: None
) -> None:
    """Wait until the claim is true; ``check`` may raise while it is not."""
    with anyio.fail_after(_LIMIT):
        while not await claim():
            check()
            await anyio.sleep(0.1)
