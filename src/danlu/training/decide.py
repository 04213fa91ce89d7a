"""The one brain of training jobs: what to do next, from what is asked for, seen and remembered.

:func:`decide` is pure. It asks nobody, and whoever calls it may forget everything but the status:
what must be known of replicas that are gone is in its records. Deciding again before the actions
were carried out gives the same actions, and when nothing is left to do it gives none and the
status it was given.

A pass goes through these phases, in an order that is fixed:

1. A job that somebody else manages, or that is being deleted, is left alone.
2. A finished job is cleaned up (:mod:`.finishing`), and its outcome never changes.
3. What is seen of each replica is laid beside its record (:mod:`.standing`, :mod:`.attempts`).
4. A suspended job loses all its replicas (:mod:`.suspending`).
5. The framework judges the tallies (:mod:`.tally`). *Succeeded* and *Failed* end the job; only
   then come the back-off limit (:mod:`.restarts`) and the active deadline. So a job that is done
   needs no restart and misses no deadline, and one that failed says which replica it was.
6. Restarts that are due are counted (:mod:`.settling`), and the actions follow from where each
   replica then stands (:mod:`.acting`): nothing is made of a replica before all is gone that was
   there of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec

from danlu.training import messages
from danlu.training.acting import creations, deadline, removals, soonest, waits
from danlu.training.conditions import saying
from danlu.training.failures import first_failure, last_straw
from danlu.training.finishing import Action, Ending, ended_before, finish
from danlu.training.framework import Framework, Tally, Verdict
from danlu.training.restarts import EVICTED, too_many
from danlu.training.settling import completed, exits, records, refused, settled
from danlu.training.standing import Scene, State, look
from danlu.training.suspending import resumed, suspended
from danlu.training.tally import replica_statuses, tallies
from danlu.training.types import (
    MANAGER,
    ConditionType,
    Decision,
    Event,
    Job,
    JobStatus,
    Observed,
    Pace,
    ReplicaRecord,
    ReplicaType,
)

__all__ = ["decide"]

PACE = Pace()

Counted = Mapping[ReplicaType, Tally]


def decide(
    job: Job, observed: Observed, framework: Framework, *, now: datetime, pace: Pace = PACE
) -> Decision:
    """Decide what to do of ``job`` now (an aware datetime), and how it then stands.

    ``job.status`` is what was decided last; ``observed`` is all that a driver sees of its
    replicas. ``pace`` says how restarts are delayed. ``requeue_after`` of the decision is exact,
    and 0.0 where it is time already. Raises nothing.
    """
    if job.deleting or job.run_policy.managed_by not in ("", MANAGER):
        return Decision((), job.status)
    if job.status.finished:
        return ended_before(job, observed, now=now)
    job = _created(job, now)
    scene = look(job, observed, framework)
    if job.run_policy.suspend:
        return suspended(job, observed, scene, framework=framework, now=now)
    return _active(job, observed, scene, framework=framework, now=now, pace=pace)


def _created(job: Job, now: datetime) -> Job:
    reason, message = messages.reason(job, "Created"), messages.created(job)
    status = saying(job.status, ConditionType.CREATED, reason=reason, message=message, now=now)
    return msgspec.structs.replace(job, status=status)


def _active(
    job: Job,
    observed: Observed,
    scene: Scene,
    *,
    framework: Framework,
    now: datetime,
    pace: Pace,
) -> Decision:
    """Judge a job that is neither finished nor suspended; end it, or go on with it."""
    status, events = resumed(job, now=now)
    counted = tallies(job, framework, scene)
    verdict = framework.outcome(job, counted)
    left = deadline(job, status.start_time, now=now)
    status = msgspec.structs.replace(
        status,
        replica_statuses=replica_statuses(job, counted),
        first_failure=first_failure(status.first_failure, scene.standings, now=now),
    )
    events = (*events, *exits(job, scene))
    ending = _ending(job, scene, counted, verdict=verdict, left=left)
    if ending is not None:
        failure = status.first_failure or last_straw(scene.standings, now=now)
        last = _last_records(scene, ending)
        status = msgspec.structs.replace(status, records=last, first_failure=failure)
        return finish(job, status, observed, ending=ending, events=events, now=now)
    status = _told(job, status, counted, verdict=verdict, now=now)
    return _continue(job, status, scene, events=events, left=left, now=now, pace=pace)


# -- the end --------------------------------------------------------------------------------------


def _ending(
    job: Job, scene: Scene, counted: Counted, *, verdict: Verdict | None, left: float | None
) -> Ending | None:
    """How the job ends now, if it does."""
    if verdict is not None and verdict.condition is ConditionType.SUCCEEDED:
        reason = messages.reason(job, "Succeeded")
        return Ending(ConditionType.SUCCEEDED, reason, messages.succeeded(job, verdict.blamed))
    if verdict is not None and verdict.condition is ConditionType.FAILED:
        return _failed(job, scene, counted, blamed=verdict.blamed)
    reason = messages.reason(job, "Failed")
    due = sum(one.state in (State.ENDED, State.LOST) for one in scene.standings)
    if too_many(job, made=scene.restarts, due=due):
        return Ending(ConditionType.FAILED, reason, messages.restarted_too_often(job))
    if left is not None and left <= 0:
        return Ending(ConditionType.FAILED, reason, messages.active_too_long(job))
    return None


def _failed(job: Job, scene: Scene, counted: Counted, *, blamed: ReplicaType) -> Ending:
    failed = [one for one in scene.standings if one.id.type == blamed and one.state is State.FAILED]
    evicted = [one for one in failed if one.attempt and one.attempt.reason == EVICTED]
    if evicted and job.kind == "MPIJob" and blamed == "Worker":
        message = messages.evicted(len(evicted), counted.get(blamed, Tally()).expected)
        return Ending(ConditionType.FAILED, messages.reason(job, EVICTED), message, event="Warning")
    number = len(failed) or counted.get(blamed, Tally()).restarting
    reason = messages.reason(job, "Failed")
    return Ending(ConditionType.FAILED, reason, messages.failed(job, blamed, number))


def _last_records(scene: Scene, ending: Ending) -> dict[str, ReplicaRecord]:
    last = completed if ending.type is ConditionType.SUCCEEDED else refused
    return records(scene, [last(one) for one in scene.standings])


# -- not yet --------------------------------------------------------------------------------------


def _told(
    job: Job, status: JobStatus, counted: Counted, *, verdict: Verdict | None, now: datetime
) -> JobStatus:
    """The status with what the verdict says of a job that goes on."""
    if verdict is None:
        return status
    if verdict.condition is ConditionType.RESTARTING:
        count = counted.get(verdict.blamed, Tally()).restarting
        reason, message = (
            messages.reason(job, "Restarting"),
            messages.restarting(job, verdict.blamed, count),
        )
    else:
        reason, message = messages.reason(job, "Running"), messages.running(job, verdict.blamed)
    return saying(status, verdict.condition, reason=reason, message=message, now=now)


def _continue(
    job: Job,
    status: JobStatus,
    scene: Scene,
    *,
    events: tuple[Event, ...],
    left: float | None,
    now: datetime,
    pace: Pace,
) -> Decision:
    standings = [settled(one, now=now, pace=pace) for one in scene.standings]
    status = msgspec.structs.replace(status, records=records(scene, standings))
    actions: tuple[Action, ...] = (
        *removals(scene, standings),
        *creations(standings, now=now),
        *events,
        *_restarts(job, scene),
    )
    return Decision(actions, status, soonest(left, *waits(standings, now=now)))


def _restarts(job: Job, scene: Scene) -> Iterator[Event]:
    """Tell of the restarts that are counted now, once for each type."""
    due = (State.ENDED, State.LOST)
    failed = [one.id.type for one in scene.standings if one.state in due and one.restarting]
    for type in dict.fromkeys(failed):
        message = messages.restarting(job, type, failed.count(type))
        yield Event("Warning", messages.reason(job, "Restarting"), message)
