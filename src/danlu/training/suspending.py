"""Suspend a job and resume it: its replicas all go, what is remembered of them stays.

What was completed before stays completed (as in Kubernetes' own Jobs), and all others are made
again when the job is resumed. That is no restart: it counts towards no limit and waits for no
time. A replica that ends while the job is suspended was told to.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from danlu.training import messages
from danlu.training.conditions import saying
from danlu.training.failures import first_failure
from danlu.training.finishing import removed
from danlu.training.framework import Framework
from danlu.training.settling import put_aside, records
from danlu.training.standing import Scene
from danlu.training.tally import replica_statuses, tallies
from danlu.training.types import (
    ConditionType,
    Decision,
    Event,
    Job,
    JobStatus,
    Observed,
)

__all__ = ["resumed", "suspended"]


def suspended(
    job: Job, observed: Observed, scene: Scene, *, framework: Framework, now: datetime
) -> Decision:
    """Remove all replicas of a job, whatever its clean pod policy; tell of it once."""
    aside = tuple(put_aside(one) for one in scene.standings)
    counted = tallies(job, framework, msgspec.structs.replace(scene, standings=aside))
    status = msgspec.structs.replace(
        _said(job, now),
        records=records(scene, aside),
        replica_statuses=replica_statuses(job, counted),
        first_failure=first_failure(job.status.first_failure, aside, now=now),
    )
    event = Event("Normal", messages.reason(job, "Suspended"), messages.suspended(job))
    told = () if job.status.has(ConditionType.SUSPENDED) else (event,)
    return Decision((*removed(observed.replicas, "the job is suspended"), *told), status)


def _said(job: Job, now: datetime) -> JobStatus:
    """Neither running nor restarting any more, but suspended."""
    status = job.status
    reason, message = messages.reason(job, "Suspended"), messages.suspended(job)
    for type in (ConditionType.RUNNING, ConditionType.RESTARTING):
        if status.has(type):
            status = saying(status, type, value="False", reason=reason, message=message, now=now)
    return saying(status, ConditionType.SUSPENDED, reason=reason, message=message, now=now)


def resumed(job: Job, *, now: datetime) -> tuple[JobStatus, tuple[Event, ...]]:
    """The status of a job that is not suspended, begun; its deadline counts from its resumption.

    Also of one that never was suspended.
    """
    status = job.status
    if not status.has(ConditionType.SUSPENDED):
        return msgspec.structs.replace(status, start_time=status.start_time or now), ()
    reason, message = messages.reason(job, "Resumed"), messages.resumed(job)
    status = saying(
        status, ConditionType.SUSPENDED, value="False", reason=reason, message=message, now=now
    )
    status = msgspec.structs.replace(status, start_time=now)
    return status, (Event("Normal", reason, message),)
