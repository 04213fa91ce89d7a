"""The first failure of a job: the one that explains the others.

If one replica fails, others often fail soon after because it is gone. So the first failure is the
one with the *earliest* end, not the one observed first. A failure that the job recovered from does
not explain a later end: it is forgotten once the replica runs again and no other has failed. If the
job fails because of the back-off limit, its first failure may be an attempt that was restarted.

An attempt that someone deleted did not fail, nor did one that was released.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from danlu.training.replicas import ReplicaState, RunState
from danlu.training.restarts import LOST, exit_reason, is_past_attempt
from danlu.training.types import (
    FirstFailure,
    Job,
    JobStatus,
    ObservedReplica,
    ReplicaPhase,
    ReplicaRecord,
)

HEALTHY_STATES = (RunState.ACTIVE, RunState.SUCCEEDED)


def find_first_failure(
    job: Job, replicas: Sequence[ReplicaState], *, now: datetime
) -> FirstFailure | None:
    """Return the first failure of the job's present trouble, None if it has none."""
    before = job.status.first_failure
    new = [_replica_failure(replica, now) for replica in replicas if _is_new_failure(replica)]
    if new and job.job_restart_policy is not None:
        before = None  # all replicas were recreated since
    if before is not None and not new and _is_recovery(before, replicas):
        return None
    return _earliest_failure(before, new)


def failure_that_ended_job(
    replicas: Sequence[ReplicaState], *, now: datetime
) -> FirstFailure | None:
    """Return who used up the back-off limit if no replica ended: one restarted in place."""
    restarted = [_replica_failure(replica, now) for replica in replicas if replica.restarted]
    return _earliest_failure(None, restarted)


def update_first_failure(
    status: JobStatus, replicas: Sequence[ObservedReplica]
) -> FirstFailure | None:
    """Return the first failure of a failed job, now that more of its replicas have ended.

    Ends are observed one after the other; one that is observed later may have happened earlier.
    """
    before = status.first_failure
    if before is None:
        return None
    late = []
    for attempt in sorted(replicas, key=lambda replica: (replica.id, replica.uid)):
        key, record = str(attempt.id), status.record(attempt.id)
        failed = attempt.phase is ReplicaPhase.FAILED and not attempt.deleting
        current = key in status.records and not is_past_attempt(record, attempt.uid)
        if failed and current and attempt.finished is not None:
            late.append(_attempt_failure(attempt, record, attempt.finished))
    return _earliest_failure(before, late)


def _is_new_failure(replica: ReplicaState) -> bool:
    match replica.state:
        case RunState.RESTARTING:
            return replica.needs_restart
        case RunState.FAILED:
            return replica.attempt is not None
        case _:
            return replica.state is RunState.MISSING


def _replica_failure(replica: ReplicaState, now: datetime) -> FirstFailure:
    if replica.attempt is not None:
        return _attempt_failure(replica.attempt, replica.record, replica.attempt.finished or now)
    return FirstFailure(
        replica=replica.id,
        attempt=replica.record.attempts,
        reason=LOST,
        message="it was deleted, or lost with its node, before it ended",
        time=now,
    )


def _attempt_failure(
    attempt: ObservedReplica, record: ReplicaRecord, time: datetime
) -> FirstFailure:
    return FirstFailure(
        replica=attempt.id,
        attempt=record.attempts,
        exit_code=attempt.exit_code,
        reason=exit_reason(attempt),
        message=attempt.message,
        time=time,
    )


def _is_recovery(before: FirstFailure, replicas: Sequence[ReplicaState]) -> bool:
    return not any(
        replica.needs_restart
        or replica.state is RunState.FAILED
        or (replica.id == before.replica and replica.state not in HEALTHY_STATES)
        for replica in replicas
    )


def _earliest_failure(
    before: FirstFailure | None, new: Sequence[FirstFailure]
) -> FirstFailure | None:
    """Return the earliest; at equal times the one known before, or whose type decides first."""
    known = [*([before] if before is not None else []), *new]
    return min(
        known, key=lambda failure: failure.time.timestamp() if failure.time else 0.0, default=None
    )
