"""Where each replica of a job stands: what is seen of it laid beside what is remembered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

import msgspec

from danlu.training.attempts import followed, released, standing_attempt
from danlu.training.framework import Framework
from danlu.training.restarts import COMPLETED, made_again
from danlu.training.types import (
    Job,
    Observed,
    ObservedReplica,
    Phase,
    ReplicaId,
    ReplicaRecord,
    ReplicaType,
)

__all__ = ["Scene", "Standing", "State", "look", "types_in_order", "wanted"]


class State(Enum):
    """Where one replica stands, before anything is decided of it."""

    ABSENT = "it is to be made, and was not yet or waits for its time"
    PENDING = "it does not run yet"
    ACTIVE = "it runs"
    GOING = "it is being ended by somebody else's order, and tells nothing by that"
    SUCCEEDED = "it is completed"
    FAILED = "it ended badly for good"
    ENDED = "its attempt ended, and it is to be made again"
    LOST = "its attempt is gone with nothing seen of its end"


class Standing(msgspec.Struct, frozen=True):
    """One replica: ``attempt`` stands for it, ``surplus`` are further ones that are to go.

    ``restarted`` says that others restarted it since its record was written (a kubelet, in place).
    """

    id: ReplicaId
    key: str
    state: State
    record: ReplicaRecord
    attempt: ObservedReplica | None = None
    surplus: tuple[ObservedReplica, ...] = ()
    restarted: bool = False

    @property
    def seen(self) -> tuple[ObservedReplica, ...]:
        """All attempts that are seen of it."""
        return self.surplus if self.attempt is None else (self.attempt, *self.surplus)

    @property
    def restarting(self) -> bool:
        """Whether it ended badly and waits to be made again.

        A replica that is always made again did not end badly when it succeeded, and one that was
        made again is no more than pending.
        """
        if self.state is State.ENDED:
            return self.attempt is not None and self.attempt.phase is Phase.FAILED
        if self.state is State.ABSENT:
            return self.record.retry_at is not None and self.record.reason != COMPLETED
        return self.state in (State.GOING, State.LOST)


class Scene(msgspec.Struct, frozen=True):
    """All of a job: its replicas in the order that decides, and what is no more of it.

    ``beyond`` are attempts at replicas of a job that was made smaller, ``foreign`` those at
    replicas it never had. ``records`` are those of replicas that it does not have now.
    """

    standings: tuple[Standing, ...]
    beyond: tuple[ObservedReplica, ...]
    foreign: tuple[ObservedReplica, ...]
    records: Mapping[str, ReplicaRecord]

    @property
    def restarts(self) -> int:
        """All that were counted, those of replicas that are no more included."""
        here = sum(one.record.restarts for one in self.standings)
        return here + sum(one.restarts for one in self.records.values())


def types_in_order(job: Job, framework: Framework) -> Iterator[ReplicaType]:
    """The types that this job has, in the order in which they decide."""
    return (type for type in framework.types if type in job.replicas)


def wanted(job: Job, type: ReplicaType) -> int:
    """How many replicas of a type there are to be; an elastic policy bounds the workers."""
    number = job.replicas[type].replicas
    elastic = job.elastic_policy
    if elastic is None or type != "Worker":
        return number
    if elastic.max_replicas is not None:
        number = min(number, elastic.max_replicas)
    return max(number, elastic.min_replicas or 0)


def look(job: Job, observed: Observed, framework: Framework) -> Scene:
    """Lay what is seen beside what is remembered; nothing is decided yet."""
    seen = _by_replica(observed)
    standings = tuple(_standings(job, framework, seen))
    ours = {one.key for one in standings}
    others = {key: one for key, one in job.status.records.items() if key not in ours}
    beyond = {str(id): found for id, found in seen.items() if _is_beyond(job, id)}
    return Scene(
        standings=standings,
        beyond=tuple(one for found in beyond.values() for one in found),
        foreign=tuple(
            one for id, found in seen.items() if not _is_beyond(job, id) for one in found
        ),
        records=_left(others, beyond),
    )


def _by_replica(observed: Observed) -> dict[ReplicaId, list[ObservedReplica]]:
    found: dict[ReplicaId, list[ObservedReplica]] = {}
    for one in observed.replicas:
        found.setdefault(one.id, []).append(one)
    return found


def _standings(
    job: Job, framework: Framework, seen: dict[ReplicaId, list[ObservedReplica]]
) -> Iterator[Standing]:
    """One for each replica the job is to have; what is seen of it is taken out of ``seen``."""
    for type in types_in_order(job, framework):
        for index in range(wanted(job, type)):
            id = ReplicaId(type, index)
            key = str(id)
            record = job.status.records.get(key) or ReplicaRecord()
            yield _stand(id, key, record, found=seen.pop(id, ()), job=job, framework=framework)


def _stand(
    id: ReplicaId,
    key: str,
    record: ReplicaRecord,
    *,
    found: Sequence[ObservedReplica],
    job: Job,
    framework: Framework,
) -> Standing:
    attempt = standing_attempt(record, found)
    surplus = tuple(one for one in found if one is not attempt)
    before, record = record, followed(record, attempt, surplus=surplus)
    restarted = record.restarts > before.restarts
    if attempt is None or record.completed or record.failed:
        state = _state_without(record)
    else:
        state = _state_of(attempt, job, framework)
    return Standing(id, key, state, record, attempt, surplus, restarted)


def _state_without(record: ReplicaRecord) -> State:
    if record.completed:
        return State.SUCCEEDED
    if record.failed:
        return State.FAILED
    return State.LOST if record.current else State.ABSENT


def _state_of(attempt: ObservedReplica, job: Job, framework: Framework) -> State:
    if attempt.deleting:
        return State.GOING
    if attempt.phase is Phase.RUNNING:
        return State.ACTIVE
    if attempt.phase is Phase.PENDING:
        return State.PENDING
    if made_again(attempt, job, framework):
        return State.ENDED
    return State.SUCCEEDED if attempt.phase is Phase.SUCCEEDED else State.FAILED


def _is_beyond(job: Job, id: ReplicaId) -> bool:
    """Whether a replica outside the job's numbers is one that it had.

    One of a type that the job does not know and never made bears its labels by mistake.
    """
    return (id.type in job.replicas and id.index >= 0) or str(id) in job.status.records


def _left(
    records: Mapping[str, ReplicaRecord], beyond: Mapping[str, Sequence[ObservedReplica]]
) -> dict[str, ReplicaRecord]:
    """The records of replicas that are no more; what succeeded before it had to go is complete."""
    return {
        key: _dismissed(records.get(key) or ReplicaRecord(), beyond.get(key, ()))
        for key in {**records, **beyond}
    }


def _dismissed(record: ReplicaRecord, found: Sequence[ObservedReplica]) -> ReplicaRecord:
    if not found and not record.current and not record.past:
        return record
    attempt = standing_attempt(record, found)
    surplus = [one for one in found if one is not attempt]
    record = followed(record, attempt, surplus=surplus)
    if attempt and attempt.phase is Phase.SUCCEEDED and not attempt.deleting:
        record = msgspec.structs.replace(record, completed=True, exit_code=attempt.exit_code)
    return released(record, seen=found)
