"""One pod's life, a step at a time: what a simulated kubelet does with it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from danlu.kube.client import Client, Deletion
from danlu.kube.controller import Done, Later, Outcome
from danlu.kube.patches import merge_patch
from danlu.kube.resources import PODS
from danlu.kube.types import Key
from danlu.testing.kubernetes import podstatus
from danlu.testing.kubernetes.courses import Behaviour, Course, Pod, PodStatus, StartedContainer
from danlu.testing.kubernetes.podlogs import Logs, Standing

__all__ = ["Life", "Player"]

_PODS = PODS.decoded(Pod)
#: Restarts in place wait so long (kubelet, MaxContainerBackOff), the first one not at all.
_LONGEST_BACK_OFF = 300.0


@dataclass(slots=True)
class Life:
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


class Player:
    """Plays the pods of a node, as ``behaviour`` says; each step is one or two requests.

    Pods are bound to ``node`` first, where it is not empty. What a step raises is to be tried
    again: nothing is lost by that.
    """

    def __init__(
        self,
        client: Client,
        *,
        behaviour: Behaviour,
        node: str,
        back_off: float,
        logs: Logs,
    ) -> None:
        self.lives: dict[Key, Life] = {}
        self._behaviour = behaviour
        self._client = client
        self._clock = client.clock
        self._node = node
        self._back_off = back_off
        self._logs = logs
        self._addresses = itertools.count(2)

    def log(self, pod: Pod, life: Life, data: bytes, container: str = "") -> None:
        """Have a container write ``data`` in its latest run; the first one by default."""
        container = container or pod.spec.containers[0].name
        now = self._clock.now()
        self._logs.write(life.uid, container, data, run=life.restarts, now=now)

    def standing(self, namespace: str, name: str, container: str) -> Standing | None:
        """How a container stands, by namespace, pod and container; None where it is not here."""
        life = self.lives.get(Key(namespace, name))
        if life is None:
            return None
        if life.stage in ("running", "over", "crashed"):
            return Standing(
                life.uid, life.restarts, "running" if life.stage == "running" else "ended"
            )
        return Standing(life.uid)

    def _life(self, pod: Pod) -> Life:
        life = self.lives.get(pod.key)
        if life is not None and life.uid == pod.metadata.uid:
            return life
        stage = {"": "new", "Pending": "new", "Running": "running"}.get(pod.status.phase, "over")
        if stage == "new" and pod.spec.node_name:
            stage = "bound"
        life = Life(
            pod.metadata.uid,
            self._behaviour(pod),
            stage,
            self._clock.monotonic(),
            self._now(),
            restarts=pod.restarts,
        )
        self.lives[pod.key] = life
        return life

    async def step(self, pod: Pod) -> Outcome:
        """The next step of a pod's life, if it is time."""
        life = self._life(pod)
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

    async def _bind(self, pod: Pod, life: Life) -> Outcome:
        if pod.spec.scheduling_gates:
            return Done()
        if life.course.unschedulable:
            self._enter(life, "over")
            await self._write(pod, life, podstatus.unscheduled(life.course.unschedulable))
            return Done()
        if self._node and not pod.spec.node_name:
            target = {"apiVersion": "v1", "kind": "Node", "name": self._node}
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": pod.key.name, "namespace": pod.key.namespace},
                "target": target,
            }
            await self._client.create(PODS, binding, name=pod.key.name, subresource="binding")
        self._enter(life, "bound")
        return await self._start(pod, life)

    async def _start(self, pod: Pod, life: Life) -> Outcome:
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

    async def _begin(self, pod: Pod, life: Life) -> Outcome:
        self._enter(life, "running")
        status = podstatus.running(
            pod, now=life.began, address=life.address, restarts=life.restarts, last=life.last
        )
        if life.course.log:
            self.log(pod, life, life.course.log.encode(), life.course.container)
        await self._write(pod, life, status)
        return await self._run(pod, life)

    async def _run(self, pod: Pod, life: Life) -> Outcome:
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

    async def _restart(self, pod: Pod, life: Life) -> Outcome:
        doubled = self._back_off * 2.0 ** (life.restarts - 1)
        wait = min(_LONGEST_BACK_OFF, doubled) if life.restarts else 0.0
        if (left := self._left(life, wait)) > 0:
            return Later(left)
        life.restarts += 1
        life.course = self._behaviour(_restarted(pod, life.restarts))
        return await self._begin(pod, life)

    async def _stop(self, pod: Pod, life: Life) -> Outcome:
        """The end of a pod that is deleted; what runs takes its time."""
        if life.stage in ("running", "crashed") and not _has_ended(pod):
            if life.stopping is None:
                life.stopping = self._clock.monotonic() + life.course.stop
            if (left := life.stopping - self._clock.monotonic()) > 0:
                return Later(left)
            await self._finish(pod, life, life.course.stopped)
        how = Deletion(grace=0, uid=pod.metadata.uid)
        await self._client.delete(PODS, pod.key.name, namespace=pod.key.namespace, how=how)
        return Done()

    async def _finish(self, pod: Pod, life: Life, code: int) -> None:
        since = life.began
        self._enter(life, "over")
        status = podstatus.finished(
            pod, life.course, code, since=since, now=life.began, restarts=life.restarts
        )
        await self._write(pod, life, status)

    def _enter(self, life: Life, stage: str) -> None:
        life.stage = stage
        life.since = self._clock.monotonic()
        life.began = self._now()

    def _left(self, life: Life, seconds: float) -> float:
        return life.since + seconds - self._clock.monotonic()

    def _now(self) -> str:
        return _written(self._clock.now())

    def _address(self) -> str:
        number = next(self._addresses)
        return f"10.{128 + number // 65536 % 128}.{number // 256 % 256}.{number % 256}"

    async def _write(self, pod: Pod, life: Life, status: dict[str, Any]) -> None:
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
