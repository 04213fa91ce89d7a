"""Which attempt stands for a replica, and how its record follows it: each end counts once.

An attempt is known by its uid. The record names the one that stands for the replica
(``current``); one that was given up (``last``, ``past``) never stands for it again and nothing of
it counts any more, however long a driver still sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from danlu.training.types import ObservedReplica, Phase, ReplicaRecord

__all__ = ["followed", "given_up", "released", "standing_attempt"]

PREFERENCE = {Phase.SUCCEEDED: 0, Phase.RUNNING: 1, Phase.PENDING: 2, Phase.FAILED: 3}
SOMEDAY = datetime.max.replace(tzinfo=UTC)


def given_up(record: ReplicaRecord, uid: str) -> bool:
    """Whether this attempt is over for the decider."""
    return uid == record.last or uid in record.past


def standing_attempt(
    record: ReplicaRecord, seen: Sequence[ObservedReplica]
) -> ObservedReplica | None:
    """The one attempt of those seen that stands for the replica, if any.

    It is the one known already. Without it, and where the replica is not over, the best of the new
    ones: one that nobody ends, that succeeded or runs, that began first.
    """
    for one in seen:
        if one.uid == record.current:
            return one
    if record.completed or record.failed:
        return None
    return min((one for one in seen if not given_up(record, one.uid)), key=_rank, default=None)


def _rank(attempt: ObservedReplica) -> tuple[bool, int, datetime, str]:
    preference = PREFERENCE[attempt.phase]
    return attempt.deleting, preference, attempt.started or SOMEDAY, attempt.uid


def followed(
    record: ReplicaRecord, attempt: ObservedReplica | None, *, surplus: Sequence[ObservedReplica]
) -> ReplicaRecord:
    """The record with this attempt standing; restarts that others made are counted.

    Those are restarts in place, and an attempt in another's stead that nobody here made.
    """
    past = tuple(sorted(one.uid for one in surplus))
    if past != record.past:
        record = msgspec.structs.replace(record, past=past)
    if attempt is None:
        return record
    if attempt.uid != record.current:
        record = _replaced(record, attempt.uid)
    if attempt.restarts > record.in_place:
        more = record.restarts + attempt.restarts - record.in_place
        record = msgspec.structs.replace(record, restarts=more, in_place=attempt.restarts)
    return record


def _replaced(record: ReplicaRecord, uid: str) -> ReplicaRecord:
    gone = 1 if record.current else 0
    return msgspec.structs.replace(
        record,
        restarts=record.restarts + gone,
        attempts=record.attempts + gone,
        last=record.current or record.last,
        current=uid,
        in_place=0,
        retry_at=None,
    )


def released(record: ReplicaRecord, *, seen: Sequence[ObservedReplica]) -> ReplicaRecord:
    """The record with its attempt given up; all that is seen of the replica is to be removed.

    No restart is counted: whoever releases it says why.
    """
    return msgspec.structs.replace(
        record,
        attempts=record.attempts + (1 if record.current else 0),
        last=record.current or record.last,
        current="",
        in_place=0,
        retry_at=None,
        past=tuple(sorted(one.uid for one in seen)),
    )
