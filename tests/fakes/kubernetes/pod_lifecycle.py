"""The lifecycle of a pod, step by step, as a simulated kubelet performs it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from danlu.kube.client import Client, DeleteOptions
from danlu.kube.controller import ReconcileResult, RequeueAfter, Success
from danlu.kube.patch import merge_patch
from danlu.kube.resources import PODS
from danlu.kube.types import Key
from tests.fakes.kubernetes import pod_status
from tests.fakes.kubernetes.container_logs import ContainerLogs, ContainerRun
from tests.fakes.kubernetes.pod_script import (
    PodBehaviour,
    PodScript,
    SimulatedPod,
    SimulatedPodStatus,
    StartedContainer,
)

__all__ = ["PodLifecycle", "PodSimulator"]

_PODS = PODS.with_model(SimulatedPod)
#: The longest wait between restarts (kubelet, MaxContainerBackOff); the first has none.
_MAX_BACK_OFF = 300.0


@dataclass(slots=True)
class PodLifecycle:
    """The state of a pod: ``since`` is when its stage began, ``began`` the same as time of day.

    ``unsent`` is a status that no server has accepted yet.
    """

    uid: str
    course: PodScript
    stage: str
    since: float
    began: str
    address: str = ""
    restarts: int = 0
    last: dict[str, Any] | None = None
    unsent: dict[str, Any] | None = None
    stopping: float | None = None


class PodSimulator:
    """Simulates the pods of a node by ``behaviour``; each step makes one or two requests.

    Pods are first bound to ``node`` unless it is empty. A step that raises can be retried: no state
    is lost.
    """

    def __init__(
        self,
        client: Client,
        *,
        behaviour: PodBehaviour,
        node: str,
        back_off: float,
        logs: ContainerLogs,
    ) -> None:
        self.lives: dict[Key, PodLifecycle] = {}
        self._behaviour = behaviour
        self._client = client
        self._clock = client.clock
        self._node = node
        self._back_off = back_off
        self._logs = logs
        self._addresses = itertools.count(2)

    def write_log(
        self, pod: SimulatedPod, life: PodLifecycle, data: bytes, container: str = ""
    ) -> None:
        """Have a container (the first by default) write ``data`` in its latest run."""
        container = container or pod.spec.containers[0].name
        now = self._clock.now()
        self._logs.write(life.uid, container, data, run=life.restarts, now=now)

    def find_run(self, namespace: str, name: str, container: str) -> ContainerRun | None:
        """Return the latest run of a container; None if it is not on this node."""
        life = self.lives.get(Key(namespace, name))
        if life is None:
            return None
        if life.stage in ("running", "over", "crashed"):
            return ContainerRun(
                life.uid, life.restarts, "running" if life.stage == "running" else "ended"
            )
        return ContainerRun(life.uid)

    def _get_lifecycle(self, pod: SimulatedPod) -> PodLifecycle:
        life = self.lives.get(pod.key)
        if life is not None and life.uid == pod.metadata.uid:
            return life
        stage = {"": "new", "Pending": "new", "Running": "running"}.get(pod.status.phase, "over")
        if stage == "new" and pod.spec.node_name:
            stage = "bound"
        life = PodLifecycle(
            pod.metadata.uid,
            self._behaviour(pod),
            stage,
            self._clock.monotonic(),
            self._format_now(),
            restarts=pod.restarts,
        )
        self.lives[pod.key] = life
        return life

    async def step(self, pod: SimulatedPod) -> ReconcileResult:
        """Perform the next step of a pod's life if it is due."""
        life = self._get_lifecycle(pod)
        if life.unsent is not None:
            await self._write_status(pod, life, life.unsent)
        if pod.metadata.deletion_timestamp is not None:
            return await self._stop_pod(pod, life)
        if life.stage == "over" or _is_over(pod):
            return Success()
        match life.stage:
            case "new":
                return await self._bind_pod(pod, life)
            case "bound" | "pending":
                return await self._start_pod(pod, life)
            case "running":
                return await self._continue_run(pod, life)
            case _:
                return await self._restart_pod(pod, life)

    async def _bind_pod(self, pod: SimulatedPod, life: PodLifecycle) -> ReconcileResult:
        if pod.spec.scheduling_gates:
            return Success()
        if life.course.unschedulable:
            self._enter_stage(life, "over")
            await self._write_status(
                pod, life, pod_status.unschedulable_status(life.course.unschedulable)
            )
            return Success()
        if self._node and not pod.spec.node_name:
            target = {"apiVersion": "v1", "kind": "Node", "name": self._node}
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": pod.key.name, "namespace": pod.key.namespace},
                "target": target,
            }
            await self._client.create(PODS, binding, name=pod.key.name, subresource="binding")
        self._enter_stage(life, "bound")
        return await self._start_pod(pod, life)

    async def _start_pod(self, pod: SimulatedPod, life: PodLifecycle) -> ReconcileResult:
        course = life.course
        if (course.start or not course.ever_starts) and life.stage == "bound":
            life.stage = "pending"
            await self._write_status(pod, life, pod_status.pending_status(pod, course))
        if not course.ever_starts or course.start is None:
            return Success()
        if (remaining := self._seconds_left(life, course.start)) > 0:
            return RequeueAfter(remaining)
        life.address = life.address or self._next_address()
        return await self._begin_run(pod, life)

    async def _begin_run(self, pod: SimulatedPod, life: PodLifecycle) -> ReconcileResult:
        self._enter_stage(life, "running")
        status = pod_status.running_status(
            pod, now=life.began, address=life.address, restarts=life.restarts, last=life.last
        )
        if life.course.log:
            self.write_log(pod, life, life.course.log.encode(), life.course.container)
        await self._write_status(pod, life, status)
        return await self._continue_run(pod, life)

    async def _continue_run(self, pod: SimulatedPod, life: PodLifecycle) -> ReconcileResult:
        course = life.course
        if course.run is None:
            return Success()
        if (remaining := self._seconds_left(life, course.run)) > 0:
            return RequeueAfter(remaining)
        if course.pod_reason:
            self._enter_stage(life, "over")
            await self._write_status(pod, life, pod_status.eviction_status(course))
            return Success()
        since, code = life.began, course.exit_code
        if not _restarts_in_place(pod, code):
            await self._finish_pod(pod, life, code)
            return Success()
        self._enter_stage(life, "crashed")
        status = pod_status.crash_loop_status(
            pod, course, since=since, now=life.began, restarts=life.restarts
        )
        life.last = status["containerStatuses"][0]["lastState"]
        await self._write_status(pod, life, status)
        return await self._restart_pod(pod, life)

    async def _restart_pod(self, pod: SimulatedPod, life: PodLifecycle) -> ReconcileResult:
        doubled = self._back_off * 2.0 ** (life.restarts - 1)
        wait = min(_MAX_BACK_OFF, doubled) if life.restarts else 0.0
        if (remaining := self._seconds_left(life, wait)) > 0:
            return RequeueAfter(remaining)
        life.restarts += 1
        life.course = self._behaviour(_with_restarts(pod, life.restarts))
        return await self._begin_run(pod, life)

    async def _stop_pod(self, pod: SimulatedPod, life: PodLifecycle) -> ReconcileResult:
        """End a deleted pod; running containers take their time to stop."""
        if life.stage in ("running", "crashed") and not _is_over(pod):
            if life.stopping is None:
                life.stopping = self._clock.monotonic() + life.course.stop
            if (remaining := life.stopping - self._clock.monotonic()) > 0:
                return RequeueAfter(remaining)
            await self._finish_pod(pod, life, life.course.stopped)
        options = DeleteOptions(grace=0, uid=pod.metadata.uid)
        await self._client.delete(PODS, pod.key.name, namespace=pod.key.namespace, options=options)
        return Success()

    async def _finish_pod(self, pod: SimulatedPod, life: PodLifecycle, code: int) -> None:
        since = life.began
        self._enter_stage(life, "over")
        status = pod_status.terminal_status(
            pod, life.course, code, since=since, now=life.began, restarts=life.restarts
        )
        await self._write_status(pod, life, status)

    def _enter_stage(self, life: PodLifecycle, stage: str) -> None:
        life.stage = stage
        life.since = self._clock.monotonic()
        life.began = self._format_now()

    def _seconds_left(self, life: PodLifecycle, seconds: float) -> float:
        return life.since + seconds - self._clock.monotonic()

    def _format_now(self) -> str:
        return _format_time(self._clock.now())

    def _next_address(self) -> str:
        number = next(self._addresses)
        return f"10.{128 + number // 65536 % 128}.{number // 256 % 256}.{number % 256}"

    async def _write_status(
        self, pod: SimulatedPod, life: PodLifecycle, status: dict[str, Any]
    ) -> None:
        """Write the status of exactly this pod, not of one that replaced it."""
        life.unsent = status
        patch = merge_patch({"metadata": {"uid": pod.metadata.uid}, "status": status})
        await self._client.patch(
            _PODS, pod.key.name, patch, namespace=pod.key.namespace, subresource="status"
        )
        life.unsent = None


def _is_over(pod: SimulatedPod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")


def _restarts_in_place(pod: SimulatedPod, code: int) -> bool:
    """Return whether its containers are restarted in place (core/v1 RestartPolicy)."""
    policy = pod.spec.restart_policy
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def _with_restarts(pod: SimulatedPod, restarts: int) -> SimulatedPod:
    """Return the pod with the restarts that its status will have; the cache is older."""
    status = SimulatedPodStatus(pod.status.phase, (StartedContainer(restarts),))
    return msgspec.structs.replace(pod, status=status)


def _format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
