"""A simulated kubelet: what becomes of the pods of any API server, fake or real."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio
import msgspec

from danlu.kube.access import Access
from danlu.kube.client import EVERYWHERE, Client, Deletion, Selection
from danlu.kube.clock import REAL
from danlu.kube.controller import Controller, Done, Later, Outcome, own_key
from danlu.kube.failures import AlreadyExists, Conflict, NotFound
from danlu.kube.informer import Informer
from danlu.kube.patches import merge_patch
from danlu.kube.resources import NODES, PODS
from danlu.kube.types import Clock, Key
from danlu.testing.kubernetes import podstatus
from danlu.testing.kubernetes.courses import (
    Behaviour,
    Course,
    Pod,
    PodStatus,
    StartedContainer,
    runs,
)
from danlu.testing.kubernetes.logserving import kubelet_server
from danlu.testing.kubernetes.podlogs import Logs, Standing

__all__ = ["Kubelet"]

_PODS = PODS.decoded(Pod)
#: Restarts in place wait so long (kubelet, MaxContainerBackOff), the first one not at all.
_LONGEST_BACK_OFF = 300.0


@dataclass(slots=True)
class _Life:
    """Where a pod stands: ``since`` counts from when its stage began, ``began`` is the day's.

    ``unsent`` is the status that no server has taken yet.
    """

    uid: str
    course: Course
    stage: str
    since: float
    began: str
    address: str = ""
    restarts: int = 0
    last: dict[str, Any] | None = None
    unsent: dict[str, Any] | None = None
    stopping: float | None = None


class Kubelet:
    """Follows the pods of a server and plays what becomes of them; an async context manager.

    ``behaviour`` says it of each pod: Pending, Running with an address, then Succeeded or Failed
    with exit code and termination message, after so many seconds of ``clock``. Restart policies
    are obeyed, in place and with the back-off of a kubelet (0, 10, 20 … 300 seconds). A pod that
    is deleted ends: its last status is written, then it is removed. The status of a pod that
    somebody else ended (a test that evicts it) is left.

    Pods are bound to a node of this name first, which is made; with ``binds`` false, those of a
    server with a scheduler of its own are waited for, and those that have no node yet run without.
    Requests are made with ``connections`` at once.

    What containers write goes to ``logs``; to those of a fake (``fake.cluster.logs``), which then
    serves them. Without, the kubelet serves its own for a real server to ask for, with the
    program ``openssl``.
    """

    def __init__(
        self,
        access: Access,
        *,
        behaviour: Behaviour = runs,
        clock: Clock = REAL,
        selection: Selection = EVERYWHERE,
        node: str = "simulated",
        binds: bool = True,
        back_off: float = 10.0,
        connections: int = 16,
        logs: Logs | None = None,
    ) -> None:
        self.behaviour = behaviour
        self.node = node
        self.logs = logs or Logs()
        self._serves = logs is None and access.server.startswith("https:")
        self._clock = clock
        self._binds = binds
        self._back_off = back_off
        self._client = Client(access, clock=clock, connections=connections + 1, manager="kubelet")
        self._pods = Informer(self._client, _PODS, selection)
        self._controller: Controller[Pod] = Controller(
            "kubelet", self._reconcile, workers=connections, clock=clock
        )
        self._controller.watch(self._pods, own_key)
        self._lives: dict[Key, _Life] = {}
        self._addresses = itertools.count(2)

    async def __aenter__(self) -> Kubelet:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._client)
            port = 0
            if self._serves:
                served = kubelet_server(self.logs, self._standing, self._clock.now)
                port = await stack.enter_async_context(served)
            if self._binds:
                await self._make_node(port)
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            group.start_soon(self._pods.run)
            group.start_soon(self._controller.run)
            await self._pods.wait_synced()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def write_log(self, namespace: str, name: str, data: bytes, *, container: str = "") -> None:
        """Have a container of a pod write ``data``; the first one's by default.

        Raises :class:`KeyError` for a pod that the kubelet does not have yet.
        """
        key = Key(namespace, name)
        life, pod = self._lives[key], self._pods.store.get(key)
        if pod is None:
            raise KeyError(name)
        self._log(pod, life, data, container)

    def _log(self, pod: Pod, life: _Life, data: bytes, container: str = "") -> None:
        container = container or pod.spec.containers[0].name
        now = self._clock.now()
        self.logs.write(life.uid, container, data, run=life.restarts, now=now)

    def _standing(self, namespace: str, name: str, container: str) -> Standing | None:
        life = self._lives.get(Key(namespace, name))
        if life is None:
            return None
        if life.stage in ("running", "over", "crashed"):
            return Standing(
                life.uid, life.restarts, "running" if life.stage == "running" else "ended"
            )
        return Standing(life.uid)

    async def _make_node(self, port: int) -> None:
        status: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "True"}]}
        if port:
            status["addresses"] = [{"type": "InternalIP", "address": "127.0.0.1"}]
            status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": port}}
        node = NODES.document({"metadata": {"name": self.node}, "status": status})
        try:
            await self._client.create(NODES, node)
        except AlreadyExists:
            patch = merge_patch({"status": status})
            await self._client.patch(NODES, self.node, patch, subresource="status")

    # One pod

    async def _reconcile(self, key: Key) -> Outcome:
        pod = self._pods.store.get(key)
        if pod is None or pod.spec.node_name not in ("", self.node):
            self._lives.pop(key, None)
            return Done()
        try:
            return await self._step(pod, self._life(pod))
        except (NotFound, Conflict):
            # Gone, or another pod of the same name: the informer will tell.
            return Done()

    def _life(self, pod: Pod) -> _Life:
        life = self._lives.get(pod.key)
        if life is not None and life.uid == pod.metadata.uid:
            return life
        stage = {"": "new", "Pending": "new", "Running": "running"}.get(pod.status.phase, "over")
        if stage == "new" and pod.spec.node_name:
            stage = "bound"
        life = _Life(
            pod.metadata.uid,
            self.behaviour(pod),
            stage,
            self._clock.monotonic(),
            self._now(),
            restarts=pod.restarts,
        )
        self._lives[pod.key] = life
        return life

    async def _step(self, pod: Pod, life: _Life) -> Outcome:
        """The next step of a pod's life, if it is time."""
        if life.unsent is not None:
            await self._write(pod, life, life.unsent)
        if pod.metadata.deletion_timestamp is not None:
            return await self._stop(pod, life)
        if life.stage == "over" or _has_ended(pod):
            return Done()
        match life.stage:
            case "new":
                return await self._bind(pod, life)
            case "bound" | "pending":
                return await self._start(pod, life)
            case "running":
                return await self._run(pod, life)
            case _:
                return await self._restart(pod, life)

    async def _bind(self, pod: Pod, life: _Life) -> Outcome:
        if pod.spec.scheduling_gates:
            return Done()
        if life.course.unschedulable:
            self._enter(life, "over")
            await self._write(pod, life, podstatus.unscheduled(life.course.unschedulable))
            return Done()
        if self._binds and not pod.spec.node_name:
            target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": pod.key.name, "namespace": pod.key.namespace},
                "target": target,
            }
            await self._client.create(PODS, binding, name=pod.key.name, subresource="binding")
        self._enter(life, "bound")
        return await self._start(pod, life)

    async def _start(self, pod: Pod, life: _Life) -> Outcome:
        course = life.course
        if (course.start or not course.starts) and life.stage == "bound":
            life.stage = "pending"
            await self._write(pod, life, podstatus.pending(pod, course))
        if not course.starts or course.start is None:
            return Done()
        if (left := self._left(life, course.start)) > 0:
            return Later(left)
        life.address = life.address or self._address()
        return await self._begin(pod, life)

    async def _begin(self, pod: Pod, life: _Life) -> Outcome:
        self._enter(life, "running")
        status = podstatus.running(
            pod, now=life.began, address=life.address, restarts=life.restarts, last=life.last
        )
        await self._write(pod, life, status)
        if life.course.log:
            self._log(pod, life, life.course.log.encode(), life.course.container)
        return await self._run(pod, life)

    async def _run(self, pod: Pod, life: _Life) -> Outcome:
        course = life.course
        if course.run is None:
            return Done()
        if (left := self._left(life, course.run)) > 0:
            return Later(left)
        if course.pod_reason:
            self._enter(life, "over")
            await self._write(pod, life, podstatus.evicted(course))
            return Done()
        since, code = life.began, course.exit_code
        if not _restarts(pod, code):
            await self._finish(pod, life, code)
            return Done()
        self._enter(life, "crashed")
        status = podstatus.crashed(pod, course, since=since, now=life.began, restarts=life.restarts)
        life.last = status["containerStatuses"][0]["lastState"]
        await self._write(pod, life, status)
        return await self._restart(pod, life)

    async def _restart(self, pod: Pod, life: _Life) -> Outcome:
        doubled = self._back_off * 2.0 ** (life.restarts - 1)
        wait = min(_LONGEST_BACK_OFF, doubled) if life.restarts else 0.0
        if (left := self._left(life, wait)) > 0:
            return Later(left)
        life.restarts += 1
        life.course = self.behaviour(_restarted(pod, life.restarts))
        return await self._begin(pod, life)

    async def _stop(self, pod: Pod, life: _Life) -> Outcome:
        """The end of a pod that is deleted; what runs takes its time."""
        if life.stage in ("running", "crashed") and not _has_ended(pod):
            if life.stopping is None:
                life.stopping = self._clock.monotonic() + life.course.stop
            if (left := life.stopping - self._clock.monotonic()) > 0:
                return Later(left)
            await self._finish(pod, life, life.course.stopped)
        how = Deletion(grace=0, uid=pod.metadata.uid)
        await self._client.delete(_PODS, pod.key.name, namespace=pod.key.namespace, how=how)
        return Done()

    async def _finish(self, pod: Pod, life: _Life, code: int) -> None:
        since = life.began
        self._enter(life, "over")
        status = podstatus.finished(
            pod, life.course, code, since=since, now=life.began, restarts=life.restarts
        )
        await self._write(pod, life, status)

    # Small things

    def _enter(self, life: _Life, stage: str) -> None:
        life.stage = stage
        life.since = self._clock.monotonic()
        life.began = self._now()

    def _left(self, life: _Life, seconds: float) -> float:
        return life.since + seconds - self._clock.monotonic()

    def _now(self) -> str:
        return _written(self._clock.now())

    def _address(self) -> str:
        number = next(self._addresses)
        return f"10.{128 + number // 65536 % 128}.{number // 256 % 256}.{number % 256}"

    async def _write(self, pod: Pod, life: _Life, status: dict[str, Any]) -> None:
        """The status of this very pod, and of no successor."""
        life.unsent = status
        patch = merge_patch({"metadata": {"uid": pod.metadata.uid}, "status": status})
        await self._client.patch(
            _PODS, pod.key.name, patch, namespace=pod.key.namespace, subresource="status"
        )
        life.unsent = None


def _has_ended(pod: Pod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")


def _restarts(pod: Pod, code: int) -> bool:
    """Whether its containers are started again in place (core/v1 RestartPolicy)."""
    policy = pod.spec.restart_policy
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def _restarted(pod: Pod, restarts: int) -> Pod:
    """The pod as its status will tell it, for the cache does not yet."""
    status = PodStatus(pod.status.phase, (StartedContainer(restarts),))
    return msgspec.structs.replace(pod, status=status)


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
