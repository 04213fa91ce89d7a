"""Partial structs of the objects that the client of jobs reads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from danlu.kube.core_v1 import Pod, PodCondition
from danlu.kube.resources import CONFIG_MAPS, EVENTS, PODS, Resource, custom_resource
from danlu.kube.types import Object
from danlu.training.framework import Framework
from danlu.training.names import LABELS_ANNOTATION
from danlu.util.decoding import decode_json


class PodObject(Pod, frozen=True, rename="camel", omit_defaults=True):
    """A pod with its spec, which stays bytes until someone needs it."""

    spec: msgspec.Raw = msgspec.Raw(b"{}")


class JobObject(Object, frozen=True, rename="camel", omit_defaults=True):
    """A job of any kind."""

    spec: Mapping[str, Any] = {}
    status: Mapping[str, Any] = {}

    @property
    def suspend(self) -> bool:
        """Whether it shall not run, because of its user or of its queue."""
        return (self.spec.get("runPolicy") or self.spec).get("suspend") is True

    @property
    def submitted_labels(self) -> dict[str, str]:
        """Labels of the submission; empty for jobs not submitted by danlu."""
        text = self.metadata.annotations.get(LABELS_ANNOTATION, "{}")
        try:
            return decode_json(text, dict[str, str])
        except msgspec.MsgspecError:
            return {}


class ReportObject(Object, frozen=True, rename="camel", omit_defaults=True):
    """The ConfigMap with what a job's replicas reported."""

    data: Mapping[str, str] = {}
    binary_data: Mapping[str, str] = {}


class EventObject(Object, frozen=True, rename="camel", omit_defaults=True):
    """An event of any object (core/v1 Event)."""

    type: str = ""
    reason: str = ""
    message: str = ""
    last_timestamp: datetime | None = None


class _PodGroupSpec(msgspec.Struct, frozen=True, rename="camel"):
    queue: str = ""


class _PodGroupStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()


class VolcanoGroup(Object, frozen=True, rename="camel", omit_defaults=True):
    """Volcano's PodGroup of a job (scheduling.volcano.sh/v1beta1)."""

    spec: _PodGroupSpec = _PodGroupSpec()
    status: _PodGroupStatus = _PodGroupStatus()


POD = PODS.with_model(PodObject)
REPORT = CONFIG_MAPS.with_model(ReportObject)
EVENT = EVENTS.with_model(EventObject)
POD_GROUP = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", VolcanoGroup)


def job_resource(framework: Framework) -> Resource[JobObject]:
    """Return the API resource of a framework's jobs."""
    return custom_resource(
        framework.api_version, framework.kind, JobObject, plural=framework.plural
    )
