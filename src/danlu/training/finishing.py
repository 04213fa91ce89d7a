"""How a job ends, and what is done after the end: clean up, time to live, nothing else.

The clean pod policy holds however the job ended (Kubeflow 1.9 removed all of them when a limit
was passed). The time to live counts from the completion time; where a job has none, as Kubeflow's
failed by an exit code had not, from its last condition's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Literal

import msgspec

from danlu.training.conditions import condition, with_condition
from danlu.training.failures import earlier
from danlu.training.tally import folded
from danlu.training.types import (
    CleanPodPolicy,
    ConditionType,
    CreateReplica,
    Decision,
    DeleteJob,
    DeleteReplica,
    Event,
    Job,
    JobStatus,
    Observed,
    ObservedReplica,
    Phase,
    ReplicaStatus,
    ReplicaType,
)

__all__ = ["Action", "Ending", "ended_before", "finish", "removed"]


Action = CreateReplica | DeleteReplica | DeleteJob | Event


class Ending(msgspec.Struct, frozen=True):
    """How a job ends: its final condition, and the event that tells of it."""

    type: Literal[ConditionType.SUCCEEDED, ConditionType.FAILED]
    reason: str
    message: str
    event: Literal["Normal", "Warning"] = "Normal"


def finish(
    job: Job,
    status: JobStatus,
    observed: Observed,
    *,
    ending: Ending,
    events: tuple[Event, ...],
    now: datetime,
) -> Decision:
    """End the job. ``status`` says all of it but the end."""
    conditions = with_condition(
        status.conditions, ending.type, reason=ending.reason, message=ending.message, now=now
    )
    status = msgspec.structs.replace(status, conditions=conditions, completion_time=now)
    if ending.type is ConditionType.SUCCEEDED:
        shown = folded(status.replica_statuses)
        status = msgspec.structs.replace(status, replica_statuses=shown, first_failure=None)
    told = Event(ending.event, ending.reason, ending.message)
    actions: tuple[Action, ...] = (*_cleaned(job, observed), *events, told)
    return Decision(actions, status, _time_to_live(job, status, now))


def ended_before(job: Job, observed: Observed, *, now: datetime) -> Decision:
    """What is left to do of a job that is finished; how it ended never changes."""
    status = _completed(job.status, now)
    if not status.has(ConditionType.SUCCEEDED):
        shown = _still_active(status, observed)
        failure = earlier(status, observed.replicas)
        status = msgspec.structs.replace(status, replica_statuses=shown, first_failure=failure)
    left = _time_to_live(job, status, now)
    if left is not None and left <= 0:
        return Decision((*_cleaned(job, observed), DeleteJob()), status)
    return Decision(tuple(_cleaned(job, observed)), status, left)


def removed(replicas: Iterable[ObservedReplica], why: str) -> Iterator[DeleteReplica]:
    """Remove these attempts, but those whose end was ordered already."""
    return (DeleteReplica(one.id, one.uid, why) for one in replicas if not one.deleting)


def _cleaned(job: Job, observed: Observed) -> Iterator[DeleteReplica]:
    policy = job.run_policy.clean_pod_policy
    if policy is CleanPodPolicy.NONE:
        return iter(())
    alive = (Phase.RUNNING, Phase.PENDING)
    replicas = observed.replicas
    if policy is CleanPodPolicy.RUNNING:
        replicas = tuple(one for one in replicas if one.phase in alive)
    return removed(replicas, "the job is finished")


def _completed(status: JobStatus, now: datetime) -> JobStatus:
    if status.completion_time is not None:
        return status
    final = condition(status.conditions, ConditionType.FAILED)
    if final is None or final.status != "True":
        final = condition(status.conditions, ConditionType.SUCCEEDED)
    when = final.last_transition_time if final is not None else None
    return msgspec.structs.replace(status, completion_time=when or now)


def _still_active(status: JobStatus, observed: Observed) -> dict[ReplicaType, ReplicaStatus]:
    """No more are shown to be active than there are."""
    active = Counter(
        one.id.type for one in observed.replicas if one.phase is Phase.RUNNING and not one.deleting
    )
    return {
        type: msgspec.structs.replace(one, active=min(one.active, active[type]))
        for type, one in status.replica_statuses.items()
    }


def _time_to_live(job: Job, status: JobStatus, now: datetime) -> float | None:
    """Seconds until the job is removed, not above 0 when it is time."""
    live = job.run_policy.ttl_seconds_after_finished
    if live is None or status.completion_time is None:
        return None
    return max(0.0, live - (now - status.completion_time).total_seconds())
