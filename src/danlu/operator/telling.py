"""What is told of a job: its status, written only where it differs, and events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from danlu.kube.client import Client
from danlu.kube.events import EventRecorder, Reference, reference_to
from danlu.kube.patches import merge_patch
from danlu.kube.resources import Resource
from danlu.operator.jobmetrics import JobMetrics
from danlu.operator.types import JobObject
from danlu.operator.writing import difference
from danlu.operator.written import Written
from danlu.training.framework import Framework
from danlu.training.manifest import status_document
from danlu.training.types import Event, JobStatus

__all__ = ["EventTeller", "StatusWriter", "listed"]

#: Enough of a long list to recognise it by; events have a limit.
_NAMED = 12


class StatusWriter:
    """Writes statuses of jobs of one kind.

    A write is one merge patch that holds for one version of the job only. A change of nothing but
    numbers waits until ``seconds`` have passed since the last write: it decides nothing.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[JobObject],
        framework: Framework,
        *,
        written: Written,
        metrics: JobMetrics,
        seconds: float,
    ) -> None:
        self._client = client
        self._resource = resource
        self._framework = framework
        self._written = written
        self._metrics = metrics
        self._seconds = seconds

    async def write(
        self, found: JobObject, old: JobStatus, new: JobStatus, *, over: str, now: datetime
    ) -> float | None:
        """Write ``new`` over the version that has ``old``; seconds to wait where that is to wait.

        Raises :class:`~danlu.kube.failures.Conflict` where the job has changed since.
        """
        if new == old:
            return None
        wait = self._seconds - self._written.since(found.metadata.uid)
        if wait > 0 and _numbers_only(old, new):
            return wait
        new = msgspec.structs.replace(new, last_reconcile_time=now)
        change = difference(status_document(old), status_document(new))
        patch = merge_patch({"metadata": {"resourceVersion": over}, "status": change})
        key = found.key
        answer = await self._client.patch(
            self._resource, key.name, patch, namespace=key.namespace, subresource="status"
        )
        version = answer.metadata.resource_version
        self._written.keep(found.metadata, over=over, version=version, status=new)
        self._metrics.written(key.namespace, self._framework, old=old, new=new)
        return None


def _numbers_only(old: JobStatus, new: JobStatus) -> bool:
    return msgspec.structs.replace(new, replica_statuses=old.replica_statuses) == old


class EventTeller:
    """Events about jobs of one kind."""

    def __init__(self, recorder: EventRecorder, resource: Resource[JobObject]) -> None:
        self._recorder = recorder
        self._resource = resource

    def decided(self, found: JobObject, events: Sequence[Event]) -> None:
        """What a decision says; that a replica ended well is told by the job's status."""
        for one in events:
            if one.reason != "ExitedWithCode" or not one.message.endswith(" code 0"):
                self._recorder.event(self._about(found), one.type, one.reason, one.message)

    def done(self, found: JobObject, reason: str, what: str) -> None:
        """That something was done."""
        self._recorder.event(self._about(found), "Normal", reason, what)

    def failed(self, found: JobObject, reason: str, what: str) -> None:
        """That something could not be done."""
        self._recorder.event(self._about(found), "Warning", reason, what)

    def _about(self, found: JobObject) -> Reference:
        return reference_to(self._resource, found)


def listed(verb: str, noun: str, names: Sequence[str]) -> str:
    """``Created pod: a``, ``Created pods: a, b and 998 more``."""
    shown = ", ".join(names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{verb} {noun}{'' if len(names) == 1 else 's'}: {shown}{more}"
