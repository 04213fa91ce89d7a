"""Which ends lead to another attempt, how long that waits, and when there were too many.

Whether a replica is made again is its restart policy's to say (Kubeflow's ``ReconcilePods``):

* ``OnFailure`` and ``Always``: when it failed, whatever its exit code.
* ``ExitCode``: when it failed with 128 or more (a signal), or with a code that nobody knows (an
  eviction, a lost machine); 1 to 127 is permanent.
* ``Never``: not.
* A replica that is *gone* with nothing seen of its end (deleted by somebody, its machine lost) is
  made again under every policy: that was not its program's doing.

``Always`` restarts a replica that *succeeded* too, as a kubelet does, but only where its success
does not help to end the job: a parameter server, a worker beside a master. Where the job ends by
it, it is completed. (On a cluster the kubelet restarts that one as well, and the job never ends.)

Every restart counts towards the back-off limit: a driver's in place, and each attempt made anew,
by whoever and of whichever policy. A job makes ``backoffLimit`` restarts and fails when it needs
one more. Kubeflow counts those of running pods only, and fails at the limit's own number.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from danlu.training.attempts import released
from danlu.training.framework import Framework, Tally
from danlu.training.types import (
    ConditionType,
    Job,
    ObservedReplica,
    Pace,
    Phase,
    ReplicaRecord,
    ReplicaType,
    RestartPolicy,
)

__all__ = [
    "COMPLETED",
    "EVICTED",
    "LOST",
    "counted",
    "decides_success",
    "delay",
    "ended",
    "made_again",
    "too_many",
]

FIRST_RETRYABLE = 128
COMPLETED = "Completed"
EVICTED = "Evicted"
LOST = "Lost"


def made_again(attempt: ObservedReplica, job: Job, framework: Framework) -> bool:
    """Whether another attempt follows this one, which ended."""
    policy = job.replicas[attempt.id.type].restart_policy
    if attempt.phase is Phase.SUCCEEDED:
        return policy is RestartPolicy.ALWAYS and not decides_success(
            job, framework, attempt.id.type
        )
    if policy is RestartPolicy.EXIT_CODE:
        return attempt.exit_code is None or attempt.exit_code >= FIRST_RETRYABLE
    return policy in (RestartPolicy.ALWAYS, RestartPolicy.ON_FAILURE)


def decides_success(job: Job, framework: Framework, type: ReplicaType) -> bool:
    """Whether a job in which this type succeeded and all others run would be done."""
    tallies = {
        one: _all_succeeded(spec.replicas)
        if one == type
        else Tally(expected=spec.replicas, active=spec.replicas)
        for one, spec in job.replicas.items()
    }
    verdict = framework.outcome(job, tallies)
    return verdict is not None and verdict.condition is ConditionType.SUCCEEDED


def _all_succeeded(number: int) -> Tally:
    return Tally(expected=number, succeeded=number, first_succeeded=number > 0)


def delay(restarts: int, pace: Pace) -> float:
    """Seconds that a replica waits before its so manieth restart (1 at least)."""
    return min(pace.longest, pace.first * 2.0 ** min(restarts - 1, 64))


def too_many(job: Job, *, made: int, due: int) -> bool:
    """Whether the back-off limit allows no more: restarts made already, and those needed now."""
    limit = job.run_policy.backoff_limit
    return limit is not None and made + due > limit


def counted(
    record: ReplicaRecord,
    *,
    attempt: ObservedReplica | None,
    seen: tuple[ObservedReplica, ...],
    now: datetime,
    pace: Pace,
) -> ReplicaRecord:
    """The record with one restart more; ``attempt`` ended, None is one that is lost."""
    restarts = record.restarts + 1
    return msgspec.structs.replace(
        released(record, seen=seen),
        restarts=restarts,
        exit_code=attempt.exit_code if attempt is not None else None,
        reason=ended(attempt),
        retry_at=now + timedelta(seconds=delay(restarts, pace)),
    )


def ended(attempt: ObservedReplica | None) -> str:
    """Why an attempt ended, in a word."""
    if attempt is None:
        return LOST
    return COMPLETED if attempt.phase is Phase.SUCCEEDED else attempt.reason or "Error"
