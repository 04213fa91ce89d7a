"""A place to run jobs: an API server, a namespace, a clock, and a hand-operated kubelet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from danlu.kube.client import Client
from danlu.kube.clock import Clock
from danlu.kube.config import ClusterConfig
from danlu.kube.errors import NotFound
from danlu.kube.manager import Manager
from danlu.kube.patch import merge_patch
from danlu.kube.resources import EVENTS, PODS, SERVICES, Resource
from danlu.kube.types import Manifest
from danlu.kube.watch import ListOptions
from danlu.operator.setup import build_manager, open_services
from danlu.operator.types import DecoratorSpec, OperatorSettings, PodDecorator, job_resource
from danlu.training.framework import Framework
from danlu.training.registry import choose_version, find_framework, find_kind
from tests.fakes.kubernetes import FakeKubernetes, VirtualClock
from tests.fakes.kubernetes.clock import finish_requests
from tests.operator.permissions import MARK, grant
from tests.training.manifests import manifest

JOB = "job"


def jobs(kind: str, version: str = "") -> Resource[Manifest]:
    return job_resource(choose_version(find_kind(kind), version)).with_model(Manifest)


def settings(space: str, **changes: Any) -> OperatorSettings:
    """An operator of one namespace that answers nowhere."""
    quiet = {"metrics_address": "", "health_address": "", "namespace": space}
    return OperatorSettings(**{**quiet, **changes})


@dataclass
class OperatorNamespace:
    """One namespace of a server; ``access`` is the tests' own, ``operator`` what operators get."""

    access: ClusterConfig
    operator: ClusterConfig
    client: Client
    space: str
    clock: Clock
    fake: FakeKubernetes | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    # -- time

    async def eventually(
        self, claim: Callable[[], Awaitable[bool]], *, seconds: float = 60.0
    ) -> None:
        """Wait until the claim is true, advancing a virtual clock meanwhile."""
        step = 0.05
        with anyio.fail_after(seconds):
            while not await claim():
                await self.pass_time(step)
                if isinstance(self.clock, VirtualClock):
                    step = min(0.5, 1.1 * step)

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock."""
        if not isinstance(self.clock, VirtualClock):
            await anyio.sleep(seconds)
            return
        end, step = self.clock.monotonic() + seconds, max(0.2, seconds / 40)
        while (remaining := end - self.clock.monotonic()) > 0:
            await self.clock.advance(min(remaining, step))
            # What goes over a connection needs turns of the real loop.
            await anyio.sleep(0.002)
        await finish_requests()

    # -- jobs

    async def submit(
        self,
        kind: str = "PyTorchJob",
        name: str = JOB,
        *,
        run: Mapping[str, Any] | None = None,
        policy: str = "",
        spec: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **replicas: int,
    ) -> Manifest:
        """Make a job of this kind, with a run policy and one restart policy for all types."""
        document = manifest(kind, **replicas)
        document["apiVersion"] = self.jobs(kind).api_version
        document["metadata"] = {"name": name, "namespace": self.space, **(metadata or {})}
        document["spec"] |= {"runPolicy": dict(run or {}), **(spec or {})}
        if policy:
            for replica in document["spec"][find_framework(kind).replicas_field].values():
                replica["restartPolicy"] = policy
        return await self.client.create(self.jobs(kind), document)

    def jobs(self, kind: str) -> Resource[Manifest]:
        """Jobs of a kind in this server's version."""
        return jobs(kind, self.versions.get(kind, ""))

    async def create(self, framework: Framework, spec: Mapping[str, Any]) -> Manifest:
        """Make a job of any framework."""
        resource = jobs(framework.kind)
        metadata = {"name": JOB, "namespace": self.space}
        return await self.client.create(
            resource, resource.to_manifest({"metadata": metadata, "spec": dict(spec)})
        )

    async def job(self, kind: str = "PyTorchJob", name: str = JOB) -> Manifest:
        return await self.client.get(self.jobs(kind), name, namespace=self.space)

    async def change(
        self, patch: Mapping[str, Any], kind: str = "PyTorchJob", name: str = JOB
    ) -> Manifest:
        change = merge_patch(patch)
        return await self.client.patch(self.jobs(kind), name, change, namespace=self.space)

    async def status(self, kind: str = "PyTorchJob", name: str = JOB) -> Manifest:
        result = await self.job(kind, name)
        status: Manifest = result.get("status") or {}
        return status

    async def state(self, kind: str = "PyTorchJob", name: str = JOB) -> str:
        """The word that a table shows: the latest condition that is true."""
        conditions = (await self.status(kind, name)).get("conditions") or []
        true = [condition["type"] for condition in conditions if condition["status"] == "True"]
        return str(true[-1]) if true else ""

    async def wait_for_state(
        self, state: str, kind: str = "PyTorchJob", name: str = JOB
    ) -> Manifest:
        """Wait for a state, and give the status."""

        async def there() -> bool:
            return await self.state(kind, name) == state

        await self.eventually(there)
        return await self.status(kind, name)

    async def is_gone(self, kind: str = "PyTorchJob", name: str = JOB) -> bool:
        try:
            await self.job(kind, name)
        except NotFound:
            return True
        return False

    # -- what the operator made

    async def all_of(self, resource: Resource[Manifest]) -> list[Manifest]:
        other = ListOptions(self.space, labels=f"!{MARK}")
        return [*(await self.client.list(resource, other)).items]

    async def names(self, resource: Resource[Manifest]) -> list[str]:
        return sorted(obj["metadata"]["name"] for obj in await self.all_of(resource))

    async def pods(self) -> list[str]:
        return await self.names(PODS)

    async def services(self) -> list[str]:
        return await self.names(SERVICES)

    async def pod(self, name: str) -> Manifest:
        return await self.client.get(PODS, name, namespace=self.space)

    async def uid(self, name: str) -> str:
        return str((await self.pod(name))["metadata"]["uid"])

    async def wait_for_pods(self, *names: str) -> None:
        """Wait until these are the pods."""

        async def there() -> bool:
            return await self.pods() == sorted(names)

        await self.eventually(there)

    async def wait_for_collection(self) -> None:
        """Wait until nothing is left of what jobs owned.

        A controller manager looks for new kinds of owners every 30 seconds only.
        """

        async def nothing_is_left() -> bool:
            return await self.pods() == await self.services() == []

        await self.eventually(nothing_is_left, seconds=100)

    async def wait_for_services(self, *names: str) -> None:
        async def there() -> bool:
            return await self.services() == sorted(names)

        await self.eventually(there)

    async def wait_for_recreation(self, name: str, uid: str) -> None:
        """Wait until another pod has the name."""

        async def there() -> bool:
            results = [pod["metadata"] for pod in await self.all_of(PODS)]
            return any(obj["name"] == name and obj["uid"] != uid for obj in results)

        await self.eventually(there)

    async def messages(self, reason: str) -> list[str]:
        return [
            event["message"] for event in await self.all_of(EVENTS) if event["reason"] == reason
        ]

    async def wait_for_event(self, reason: str) -> str:
        """Wait for an event, and give its words."""

        async def event_exists() -> bool:
            return bool(await self.messages(reason))

        await self.eventually(event_exists)
        return (await self.messages(reason))[-1]

    # -- the kubelet's part

    async def run(self, *names: str) -> None:
        """Set these pods running, by default all."""
        for name in names or await self.pods():
            await self._patch_status(
                name, {"phase": "Running", **self._container_status(name, {"running": {}})}
            )

    async def end(self, *names: str, code: int = 0, **end: Any) -> None:
        """End the containers of these pods."""
        terminated = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", **end}
        phase = "Failed" if code else "Succeeded"
        for name in names or await self.pods():
            status = self._container_status(name, {"terminated": terminated})
            await self._patch_status(name, {"phase": phase, **status})

    async def restart(self, name: str, count: int) -> None:
        """Restart its container in place, as a kubelet does."""
        status = self._container_status(name, {"running": {}}, restarts=count)
        await self._patch_status(name, {"phase": "Running", **status})

    async def evict(self, name: str) -> None:
        await self._patch_status(
            name, {"phase": "Failed", "reason": "Evicted", "message": "no memory"}
        )

    async def delete(self, name: str, resource: Resource[Manifest] = PODS) -> None:
        await self.client.delete(resource, name, namespace=self.space)

    async def _patch_status(self, name: str, status: Manifest) -> None:
        document = await self.pod(name)
        containers = document["spec"]["containers"]
        for container in status.get("containerStatuses", ()):
            container["name"] = containers[0]["name"]
        patch = merge_patch({"status": status})
        await self.client.patch(PODS, name, patch, namespace=self.space, subresource="status")

    @staticmethod
    def _container_status(name: str, state: Manifest, *, restarts: int = 0) -> Manifest:
        status = {
            "name": name,
            "image": "example/train:1",
            "imageID": "",
            "ready": False,
            "restartCount": restarts,
            "state": state,
        }
        return {"containerStatuses": [status]}

    # -- operators

    @asynccontextmanager
    async def _grant_rights(self, client: Client, wanted: OperatorSettings) -> AsyncIterator[None]:
        """Grant operators their permissions if they have an identity of their own."""
        if self.operator != self.access:
            await grant(self.client, client, wanted)
        yield

    @asynccontextmanager
    async def operator_runs(
        self,
        *,
        decorators: Sequence[PodDecorator] = (),
        asking: Sequence[DecoratorSpec] = (),
        **changes: Any,
    ) -> AsyncIterator[Manager]:
        """An operator of this namespace, while the context lasts; stopped in order at its end."""
        client = Client(self.operator, clock=self.clock, manager="danlu-operator")
        changes = {"versions": self.versions, **changes}
        expected = settings(self.space, decorators=tuple(asking), **changes)
        async with (
            client,
            self._grant_rights(client, expected),
            open_services(client, expected, namespace=self.space) as services,
            anyio.create_task_group() as group,
        ):
            manager = build_manager(client, expected, decorators=decorators, services=services)
            group.start_soon(manager.run)
            yield manager
            manager.stop()
