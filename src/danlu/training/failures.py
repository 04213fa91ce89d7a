"""Which failure is the first: the one that a user who asks why wants to see.

When one replica fails, others soon follow because it is gone, so the first is the one that ended
*earliest*, not the one that was noticed first. A failure that was overcome is no reason of a later
end: once the replica runs again and none stands badly, it is forgotten. So the first failure of a
failed job is the one that began its last trouble, were it an attempt that was restarted since and
the job's end the restart that the back-off limit refused.

An attempt that somebody ordered to end did not fail by that, nor one that was given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from danlu.training.attempts import given_up
from danlu.training.restarts import LOST, ended
from danlu.training.standing import Standing, State
from danlu.training.types import (
    FirstFailure,
    JobStatus,
    ObservedReplica,
    Phase,
    ReplicaRecord,
)

__all__ = ["earlier", "first_failure", "last_straw"]

WELL = (State.ACTIVE, State.SUCCEEDED)


def first_failure(
    before: FirstFailure | None, standings: Sequence[Standing], *, now: datetime
) -> FirstFailure | None:
    """The first failure of the trouble the job is in now; None where it is in none."""
    new = [_failure(one, now) for one in standings if _failed_now(one)]
    if before is not None and not new and _overcome(before, standings):
        return None
    return _earliest(before, new)


def last_straw(standings: Sequence[Standing], *, now: datetime) -> FirstFailure | None:
    """Who used the back-off limit up where nobody ended: one that was restarted in place."""
    return _earliest(None, [_failure(one, now) for one in standings if one.restarted])


def earlier(status: JobStatus, replicas: Sequence[ObservedReplica]) -> FirstFailure | None:
    """The first failure of a failed job, once the ends of all its replicas come to be known.

    They are seen one after the other; one seen later may have ended before.
    """
    before = status.first_failure
    if before is None:
        return None
    ordered = sorted(replicas, key=lambda one: (one.id, one.uid))
    return _earliest(before, [one for found in ordered for one in _later_seen(status, found)])


def _later_seen(status: JobStatus, found: ObservedReplica) -> Sequence[FirstFailure]:
    record = status.record(found.id)
    counts = str(found.id) in status.records and not given_up(record, found.uid)
    if found.finished is None or found.deleting or found.phase is not Phase.FAILED or not counts:
        return ()
    return (_of(found, record, found.finished),)


def _failed_now(one: Standing) -> bool:
    if one.state is State.ENDED:
        return one.restarting
    seen_failed = one.state is State.FAILED and one.attempt is not None
    return seen_failed or one.state is State.LOST


def _failure(one: Standing, now: datetime) -> FirstFailure:
    if one.attempt is None:
        return FirstFailure(
            replica=one.id,
            attempt=one.record.attempts,
            reason=LOST,
            message="nothing is left of it",
            time=now,
        )
    return _of(one.attempt, one.record, one.attempt.finished or now)


def _of(attempt: ObservedReplica, record: ReplicaRecord, time: datetime) -> FirstFailure:
    return FirstFailure(
        replica=attempt.id,
        attempt=record.attempts,
        exit_code=attempt.exit_code,
        reason=ended(attempt),
        message=attempt.message,
        time=time,
    )


def _overcome(before: FirstFailure, standings: Sequence[Standing]) -> bool:
    return not any(
        one.restarting
        or one.state is State.FAILED
        or (one.id == before.replica and one.state not in WELL)
        for one in standings
    )


def _earliest(before: FirstFailure | None, new: Sequence[FirstFailure]) -> FirstFailure | None:
    """The earliest; of several at one time the one known before, or whose type decides first."""
    known = [*([before] if before is not None else []), *new]
    return min(known, key=lambda one: one.time.timestamp() if one.time else 0.0, default=None)
