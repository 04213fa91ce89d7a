"""What the operator reads from a cluster, and what it is told by who runs it.

Objects are partial: a pod here is what decides about a job, 3 KiB of what may be a hundred. All
values are frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

from danlu.errors import OutsideError
from danlu.kube.types import Document, Object

__all__ = [
    "ContainerState",
    "ContainerStatus",
    "DecoratorFailed",
    "DecoratorSpec",
    "JobObject",
    "OperatorSettings",
    "PodCondition",
    "PodDecorator",
    "PodGroupObject",
    "PodObject",
    "PodStatus",
    "ServiceObject",
]


class Terminated(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The end of a container (core/v1 ContainerStateTerminated)."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Waiting(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One of the two is there, or the container runs."""

    terminated: Terminated | None = None
    waiting: Waiting | None = None


class ContainerStatus(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """How a container stands."""

    name: str
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodCondition(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What is said of a pod: why it is not scheduled, what disrupted it."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """How a pod stands."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: datetime | None = None
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class PodObject(Object, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A pod, as far as it decides about a job."""

    status: PodStatus = PodStatus()


class ServiceObject(Object, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A Service: that it is there is all that matters."""


class PodGroupStatus(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How the pods of a gang stand."""

    phase: str = ""


class PodGroupObject(Object, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A PodGroup of either gang scheduler."""

    status: PodGroupStatus = PodGroupStatus()


class JobObject(Object, frozen=True, rename="camel", omit_defaults=True):
    """A training job of any kind; its spec and status keep their bytes until they are wanted."""

    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


class DecoratorFailed(OutsideError):
    """A pod could not be decorated, and its decorator's failure policy does not let it pass."""


class PodDecorator(Protocol):
    """Something that changes pods before they are made."""

    async def __call__(self, job: Document, pod: Document) -> Document:
        """The pod to make instead of ``pod``, neither of which is changed in place.

        ``job`` is as its manifest has it. Raises :class:`DecoratorFailed`: the pod is not made.
        """


class DecoratorSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A server that changes pods before they are made (``danlu operator run --decorator``).

    It is POSTed ``{"job": …, "pod": …}`` and answers ``{"patch": [RFC 6902 …]}`` or nothing.
    ``failure_policy`` *Fail* leaves the job pending with an event, *Ignore* makes the pod as it
    was. ``ca`` is PEM, empty for this machine's certificates; ``kinds`` empty for all.
    """

    url: str
    timeout_seconds: float = 10.0
    failure_policy: Literal["Fail", "Ignore"] = "Fail"
    ca: str = ""
    kinds: tuple[str, ...] = ()


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What ``danlu operator run`` is told; the names of Kubeflow's flags where it has them.

    ``kinds`` are those of the enabled schemes, empty for all; ``namespace`` empty for the whole
    cluster. ``gang_scheduler`` is empty, ``volcano``, or the name of a scheduler of
    scheduler-plugins. ``images`` replaces images that frameworks name themselves
    (``kubeflow/kubectl-delivery:latest``). ``wait_for_master`` is the image of init containers
    that wait for a master's name, empty for none. ``reports_url`` is how replicas reach
    ``reports_address`` (``https://HOST:PORT``).
    """

    kinds: tuple[str, ...] = ()
    namespace: str = ""
    threads: int = 8
    rate: float = 0.0
    burst: int = 0
    metrics_address: str = "0.0.0.0:8080"
    health_address: str = "0.0.0.0:8081"
    reports_address: str = ""
    reports_url: str = ""
    leader_elect: bool = False
    lease_name: str = "danlu-operator"
    lease_namespace: str = ""
    gang_scheduler: str = ""
    cluster_domain: str = ""
    images: Mapping[str, str] = {}
    wait_for_master: str = ""
    decorators: tuple[DecoratorSpec, ...] = ()
    decorator_config: str = ""
    status_seconds: float = 1.0
    pace: Mapping[str, Any] = {}
