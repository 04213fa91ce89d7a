"""Scripts of pods, which a simulated kubelet plays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from danlu.kube.types import Object

__all__ = [
    "PodBehaviour",
    "PodContainer",
    "PodScript",
    "PodSpec",
    "SimulatedPod",
    "SimulatedPodStatus",
    "StartedContainer",
    "complete_after",
    "run_forever",
]


class PodContainer(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A container of a pod spec."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[dict[str, Any], ...] = ()

    def variable(self, name: str) -> str:
        """Return the value of an environment variable; empty if it is not set."""
        return next(
            (str(variable.get("value", "")) for variable in self.env if variable["name"] == name),
            "",
        )


class PodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The part of a pod spec that a kubelet acts on."""

    containers: tuple[PodContainer, ...] = ()
    init_containers: tuple[PodContainer, ...] = ()
    restart_policy: str = "Always"
    node_name: str = ""
    scheduling_gates: tuple[dict[str, str], ...] = ()


class StartedContainer(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """How often a container was restarted in place."""

    restart_count: int = 0


class SimulatedPodStatus(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The part of a pod status that a kubelet continues from."""

    phase: str = ""
    container_statuses: tuple[StartedContainer, ...] = ()


class SimulatedPod(Object, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A pod as its kubelet sees it."""

    spec: PodSpec = PodSpec()
    status: SimulatedPodStatus = SimulatedPodStatus()

    @property
    def restarts(self) -> int:
        """How often its containers were restarted in place, according to its status."""
        return max((status.restart_count for status in self.status.container_statuses), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodScript:
    """One run of a pod's containers; a restart in place begins another one.

    ``start`` is the seconds until they run, ``run`` those until they end; None for never.
    ``exit_code`` is that of the container ``container``, or of all if that is empty; ``reason`` is
    its reason (``OOMKilled``), ``message`` its termination message, ``log`` what it writes when it
    starts. ``pod_reason`` ends the whole pod as Failed, like an eviction (``Evicted``).
    ``unschedulable`` is the message if no node fits, ``waiting`` the reason why nothing starts
    (``ErrImagePull``); with either, the pod does not run. A pod that is deleted while it runs takes
    ``stop`` seconds to end with ``stopped``.
    """

    start: float | None = 0.0
    run: float | None = None
    exit_code: int = 0
    container: str = ""
    reason: str = ""
    message: str = ""
    log: str = ""
    pod_reason: str = ""
    unschedulable: str = ""
    waiting: str = ""
    stop: float = 0.0
    stopped: int = 143

    @property
    def ever_starts(self) -> bool:
        """Whether its containers ever run."""
        return self.start is not None and not self.unschedulable and not self.waiting


PodBehaviour = Callable[[SimulatedPod], PodScript]
"""What becomes of a pod; asked once for each run of its containers (``pod.restarts``)."""


def run_forever(pod: SimulatedPod) -> PodScript:
    """Run every pod at once, until it is deleted."""
    return PodScript()


def complete_after(seconds: float = 0.0) -> PodBehaviour:
    """Run every pod at once; it succeeds after ``seconds``."""
    course = PodScript(run=seconds)
    return lambda pod: course
