"""What the client of jobs reads from a cluster: partial structs, all values frozen."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from danlu.kube.resources import CONFIG_MAPS, EVENTS, PODS, Resource
from danlu.kube.types import Object
from danlu.training.cluster import GROUP, VERSION
from danlu.training.framework import Framework

__all__ = [
    "EVENT",
    "POD",
    "REPORT",
    "ContainerState",
    "ContainerStatus",
    "EventObject",
    "JobObject",
    "PodCondition",
    "PodObject",
    "ReportObject",
    "job_resource",
]


class Running(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Since when a container runs."""

    started_at: datetime | None = None


class Terminated(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The end of a container (core/v1 ContainerStateTerminated)."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Waiting(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a container does not run."""

    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the three is there, or nothing is known."""

    running: Running | None = None
    terminated: Terminated | None = None
    waiting: Waiting | None = None


class ContainerStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How a container stands."""

    name: str
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodCondition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is said of a pod: why no node takes it."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How a pod stands."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: datetime | None = None
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class PodObject(Object, frozen=True, rename="camel", omit_defaults=True):
    """A pod: its spec stays bytes until somebody asks what it runs."""

    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: PodStatus = PodStatus()


class JobObject(Object, frozen=True, rename="camel", omit_defaults=True):
    """A job of any kind."""

    spec: Mapping[str, Any] = {}
    status: Mapping[str, Any] = {}


class ReportObject(Object, frozen=True, rename="camel", omit_defaults=True):
    """The ConfigMap with what replicas reported."""

    data: Mapping[str, str] = {}
    binary_data: Mapping[str, str] = {}


class EventObject(Object, frozen=True, rename="camel", omit_defaults=True):
    """What somebody said of an object (core/v1 Event)."""

    type: str = ""
    reason: str = ""
    message: str = ""
    last_timestamp: datetime | None = None


POD = PODS.decoded(PodObject)
REPORT = CONFIG_MAPS.decoded(ReportObject)
EVENT = EVENTS.decoded(EventObject)


def job_resource(framework: Framework) -> Resource[JobObject]:
    """Where jobs of a framework are kept."""
    return Resource(GROUP, VERSION, framework.plural, framework.kind, JobObject)
