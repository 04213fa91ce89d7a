"""Partial structs of the core/v1 objects that more than one package reads.

The fields are those of k8s.io/api/core/v1 that someone here uses; the decoder skips all others. A
package that needs more of a pod subclasses :class:`Pod`.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from danlu.kube.types import Object


class ContainerStateRunning(
    msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True
):
    """The state of a running container."""

    started_at: datetime | None = None


class ContainerStateTerminated(
    msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True
):
    """The state of a terminated container."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerStateWaiting(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The state of a container that has not started: ``reason`` is ``ImagePullBackOff`` etc."""

    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The state of a container: at most one field is set, none means waiting."""

    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None
    waiting: ContainerStateWaiting | None = None


class ContainerStatus(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The current and the previous state of a container."""

    name: str
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodCondition(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A condition of a pod: ``PodScheduled``, ``DisruptionTarget`` and so on."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The status of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: datetime | None = None
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Object, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A pod by its metadata and status, which is what decides about a job.

    Without the spec a pod takes about 3 KiB in a cache instead of up to a hundred.
    """

    status: PodStatus = PodStatus()
