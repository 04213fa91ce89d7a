"""Restart policies, the back-off between attempts, and the record of each replica's attempts.

Whether a replica is restarted follows from its restart policy (Kubeflow's ``ReconcilePods``):

* ``OnFailure`` and ``Always``: after any failure.
* ``ExitCode``: after exit code 128 or more (a signal), or if the exit code is unknown (an eviction,
  a lost node). Codes 1 to 127 are permanent failures.
* ``Never``: not at all.
* A replica that disappeared without a recorded exit status (deleted by someone else, node lost) is
  restarted under every policy: its program did not cause that.

``Always`` also restarts a replica that *succeeded*, as a kubelet does, but only if its success does
not help to end the job (a parameter server, a worker next to a master). If it does, the replica is
complete. (On a cluster the kubelet restarts that one as well, and such a job never ends.)

With a ``Job.job_restart_policy`` no replica is restarted alone. If one fails or disappears, all are
recreated, including those that succeeded, as JobSet does: a rendezvous that has lost a member does
not end. That is one restart of the job, however many had failed. The policy of a replica then only
says which of its exit codes are permanent failures (``ExitCode``), and a success is one until then.

All restarts count towards the back-off limit: those a kubelet makes in place and each new attempt,
whatever the policy. The job fails when it needs more than ``backoffLimit``. Kubeflow counts only
restarts of running pods, and already fails at the limit itself.

An attempt is identified by its uid. A record names the ``current`` attempt of its replica; earlier
ones (``last``, ``past``) never become current again and count no more, however long the driver
still reports them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from danlu.training.framework import Framework, ReplicaCounts
from danlu.training.types import (
    ConditionType,
    Job,
    ObservedReplica,
    ReplicaPhase,
    ReplicaRecord,
    ReplicaType,
    RestartBackoff,
    RestartPolicy,
)
from danlu.util.backoff import exponential_delay

FIRST_RETRYABLE_CODE = 128
BATCH_BACKOFF_LIMIT = 6

# Values of ReplicaRecord.reason; a driver's own reasons (OOMKilled, Error) are kept as they are.
COMPLETED = "Completed"
EVICTED = "Evicted"
LOST = "Lost"
JOB_RESTARTED = "JobRestarted"

PHASE_PREFERENCE = {
    ReplicaPhase.SUCCEEDED: 0,
    ReplicaPhase.RUNNING: 1,
    ReplicaPhase.PENDING: 2,
    ReplicaPhase.FAILED: 3,
}
NOT_STARTED = datetime.max.replace(tzinfo=UTC)


# -- policy ---------------------------------------------------------------------------------------


def will_restart(attempt: ObservedReplica, job: Job, framework: Framework) -> bool:
    """Return whether another attempt follows this one, which has ended."""
    type = attempt.id.type
    policy = job.replicas[type].restart_policy
    together = job.job_restart_policy is not None
    if attempt.phase is ReplicaPhase.SUCCEEDED:
        ends = together or job.is_stage(type) or decides_success(job, framework, type)
        return policy is RestartPolicy.ALWAYS and not ends
    if type in framework.batch_types:
        return True
    if policy is RestartPolicy.EXIT_CODE:
        return attempt.exit_code is None or attempt.exit_code >= FIRST_RETRYABLE_CODE
    return together or policy in (RestartPolicy.ALWAYS, RestartPolicy.ON_FAILURE)


def decides_success(job: Job, framework: Framework, type: ReplicaType) -> bool:
    """Return whether the job succeeds if all replicas of this type do while all others run."""
    counts = {
        other: ReplicaCounts(expected=spec.replicas, active=spec.replicas)
        for other, spec in job.replicas.items()
    }
    number = counts[type].expected
    counts[type] = ReplicaCounts(expected=number, succeeded=number, first_succeeded=number > 0)
    verdict = framework.evaluate(job, counts)
    return verdict is not None and verdict.condition is ConditionType.SUCCEEDED


def backoff_delay(restarts: int, backoff: RestartBackoff) -> float:
    """Return the seconds to wait before restart number ``restarts`` (from 1)."""
    return exponential_delay(backoff.first_delay, backoff.max_delay, restarts - 1)


def exceeds_backoff_limit(job: Job, framework: Framework, *, made: int, due: int) -> bool:
    """Return whether the restarts ``made`` and those now ``due`` exceed the job's limit.

    ``due`` is the number of replicas; if they are restarted together, it counts as one.
    """
    if (policy := job.job_restart_policy) is not None:
        limit, due = policy.max_restarts, min(due, 1)
    else:
        limit = job.run_policy.backoff_limit
        if limit is None and framework.batch_types:
            limit = BATCH_BACKOFF_LIMIT
    return limit is not None and made + due > limit


def exit_reason(attempt: ObservedReplica | None) -> str:
    """Return a one-word reason for the end of an attempt; None is one that disappeared."""
    if attempt is None:
        return LOST
    return COMPLETED if attempt.phase is ReplicaPhase.SUCCEEDED else attempt.reason or "Error"


# -- records --------------------------------------------------------------------------------------


def is_past_attempt(record: ReplicaRecord, uid: str) -> bool:
    """Return whether this attempt was released, and is therefore ignored."""
    return uid == record.last or uid in record.past


def current_attempt(
    record: ReplicaRecord, attempts: Sequence[ObservedReplica]
) -> ObservedReplica | None:
    """Return the attempt that represents the replica, if any.

    It is the one the record names. If that is gone and the replica is not finished, it is the best
    of the new ones: not being deleted, succeeded or running, started first.
    """
    for attempt in attempts:
        if attempt.uid == record.current:
            return attempt
    if record.completed or record.failed:
        return None
    new = (attempt for attempt in attempts if not is_past_attempt(record, attempt.uid))
    return min(new, key=_attempt_preference, default=None)


def _attempt_preference(attempt: ObservedReplica) -> tuple[bool, int, datetime, str]:
    preference = PHASE_PREFERENCE[attempt.phase]
    return attempt.deleting, preference, attempt.started or NOT_STARTED, attempt.uid


def update_record(
    record: ReplicaRecord,
    attempt: ObservedReplica | None,
    *,
    surplus: Sequence[ObservedReplica],
) -> ReplicaRecord:
    """Return the record with ``attempt`` as the current one.

    Counts the restarts that others made: in place (a kubelet), or as an attempt that replaced the
    current one without our doing.
    """
    past = tuple(sorted(old.uid for old in surplus))
    if past != record.past:
        record = msgspec.structs.replace(record, past=past)
    if attempt is None:
        return record
    if attempt.uid != record.current:
        # The first attempt replaces none, and so does one after a release, which was counted then.
        replaced = 1 if record.current else 0
        record = msgspec.structs.replace(
            record,
            restarts=record.restarts + replaced,
            attempts=record.attempts + replaced,
            last=record.current or record.last,
            current=attempt.uid,
            in_place=0,
            retry_at=None,
        )
    if attempt.restarts > record.in_place:
        restarts = record.restarts + attempt.restarts - record.in_place
        record = msgspec.structs.replace(record, restarts=restarts, in_place=attempt.restarts)
    return record


def release_attempt(record: ReplicaRecord, *, seen: Sequence[ObservedReplica]) -> ReplicaRecord:
    """Return the record without a current attempt; every attempt in ``seen`` is a past one.

    Counts no restart: the caller knows whether this is one.
    """
    return msgspec.structs.replace(
        record,
        attempts=record.attempts + (1 if record.current else 0),
        last=record.current or record.last,
        current="",
        in_place=0,
        retry_at=None,
        past=tuple(sorted(attempt.uid for attempt in seen)),
    )


def count_restart(
    record: ReplicaRecord,
    *,
    attempt: ObservedReplica | None,
    seen: Sequence[ObservedReplica],
    now: datetime,
    backoff: RestartBackoff,
) -> ReplicaRecord:
    """Return the record with one more restart, after ``attempt`` ended (None: disappeared)."""
    restarts = record.restarts + 1
    return msgspec.structs.replace(
        release_attempt(record, seen=seen),
        restarts=restarts,
        exit_code=attempt.exit_code if attempt is not None else None,
        reason=exit_reason(attempt),
        retry_at=now + timedelta(seconds=backoff_delay(restarts, backoff)),
    )


def reset_record(record: ReplicaRecord, *, seen: Sequence[ObservedReplica]) -> ReplicaRecord:
    """Return the record of a replica that is recreated with the whole job, whatever its state."""
    return msgspec.structs.replace(
        release_attempt(record, seen=seen),
        completed=False,
        failed=False,
        exit_code=None,
        reason=JOB_RESTARTED,
    )
