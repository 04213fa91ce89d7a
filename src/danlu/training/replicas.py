"""The state of each replica of a job: what the driver observed, combined with its record.

:func:`observe_replicas` is the input of every decision. The ``record_*`` functions write down what
became of a replica once that is decided, and :func:`count_replicas` is what a framework sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum

import msgspec

from danlu.errors import UsageError
from danlu.training import messages
from danlu.training.framework import Framework, ReplicaCounts
from danlu.training.rendering import type_labels
from danlu.training.restarts import (
    COMPLETED,
    EVICTED,
    JOB_RESTARTED,
    backoff_delay,
    count_restart,
    current_attempt,
    exit_reason,
    release_attempt,
    reset_record,
    update_record,
    will_restart,
)
from danlu.training.types import (
    Event,
    Job,
    ObservedReplica,
    ObservedReplicas,
    ReplicaId,
    ReplicaPhase,
    ReplicaRecord,
    ReplicaStatus,
    ReplicaType,
    RestartBackoff,
)

NO_FAILURES = (COMPLETED, JOB_RESTARTED)
"""Why a replica is restarted that did not fail (:attr:`ReplicaRecord.reason`)."""


class RunState(Enum):
    """The state of one replica before anything is decided about it."""

    ABSENT = "absent"  # not created yet, or waiting for its back-off
    PENDING = "pending"
    ACTIVE = "active"
    TERMINATING = "terminating"  # deleted by someone else; its exit is not counted
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # permanently: its policy allows no restart
    RESTARTING = "restarting"  # its attempt ended, and its policy restarts it
    MISSING = "missing"  # its attempt disappeared before its end was observed


DUE_STATES = (RunState.RESTARTING, RunState.MISSING)
"""States of replicas whose restart is counted now."""


class ReplicaState(msgspec.Struct, frozen=True):
    """One replica. ``attempt`` represents it; ``surplus`` are further attempts, to be deleted.

    ``restarted`` is set if others restarted it since its record was written (a kubelet, in place).
    """

    id: ReplicaId
    key: str
    state: RunState
    record: ReplicaRecord
    attempt: ObservedReplica | None = None
    surplus: tuple[ObservedReplica, ...] = ()
    restarted: bool = False

    @property
    def attempts(self) -> tuple[ObservedReplica, ...]:
        """All observed attempts."""
        return self.surplus if self.attempt is None else (self.attempt, *self.surplus)

    @property
    def exit_code(self) -> int | None:
        """The exit code of its attempt, if known."""
        return self.attempt.exit_code if self.attempt is not None else None

    @property
    def is_eviction(self) -> bool:
        """Whether it failed permanently because it was evicted."""
        attempt = self.attempt
        return self.state is RunState.FAILED and attempt is not None and attempt.reason == EVICTED

    @property
    def needs_restart(self) -> bool:
        """Whether it failed and is waiting for its next attempt.

        A replica that is restarted after every end did not fail if it succeeded, and one whose next
        attempt exists is only pending.
        """
        if self.state is RunState.RESTARTING:
            return self.attempt is not None and self.attempt.phase is ReplicaPhase.FAILED
        if self.state is RunState.ABSENT:
            return self.record.retry_at is not None and self.record.reason not in NO_FAILURES
        return self.state in (RunState.TERMINATING, RunState.MISSING)


class JobReplicas(msgspec.Struct, frozen=True):
    """All replicas of a job, ordered as their types decide its outcome, and what is left of others.

    ``scaled_down`` are attempts at replicas that the job had before it was made smaller,
    ``foreign`` those at replicas it never had. ``records`` are those of replicas that it does not
    have any more.
    """

    replicas: tuple[ReplicaState, ...]
    scaled_down: tuple[ObservedReplica, ...]
    foreign: tuple[ObservedReplica, ...]
    records: Mapping[str, ReplicaRecord]

    def count_restarts(self, types: Collection[ReplicaType]) -> int:
        """Count all restarts so far; without ``types`` also of replicas that were scaled down."""
        counted = self.select_types(types)
        orphans = () if types else self.records.values()
        records = (*(replica.record for replica in counted), *orphans)
        return sum(record.restarts for record in records)

    def select_types(self, types: Collection[ReplicaType]) -> tuple[ReplicaState, ...]:
        """Return the replicas of some types, or all without ``types``."""
        return tuple(replica for replica in self.replicas if not types or replica.id.type in types)


def desired_replicas(job: Job, type: ReplicaType, framework: Framework) -> int:
    """Return the number of replicas of a type, within the elastic policy's bounds."""
    number = job.replicas[type].replicas
    elastic = job.elastic_policy
    if elastic is None or type != framework.scaled_type:
        return number
    if elastic.max_replicas is not None:
        number = min(number, elastic.max_replicas)
    return max(number, elastic.min_replicas or 0)


def replica_ids(job: Job, framework: Framework) -> Iterator[ReplicaId]:
    """Yield all replicas that a job should have, in order."""
    for type in job.replicas:
        number = desired_replicas(job, type, framework)
        yield from (ReplicaId(type, index) for index in range(number))


def with_replicas(job: Job, numbers: Mapping[str, int], framework: Framework) -> Job:
    """Return the job with other numbers of replicas, by type (case-insensitive).

    Raises :class:`UsageError` for an unknown type, and for a number outside the job's limits.
    """
    types = {str(type).lower(): type for type in job.replicas}
    replicas = dict(job.replicas)
    for name, number in numbers.items():
        type = types.get(name.lower())
        if type is None:
            raise UsageError(
                f"job {job.name} has no replicas of type {name}",
                hint=f"valid types: {', '.join(job.replicas)}",
            )
        _check_replica_count(job, type, number, framework)
        replicas[type] = msgspec.structs.replace(replicas[type], replicas=number)
    return msgspec.structs.replace(job, replicas=replicas)


def _check_replica_count(job: Job, type: ReplicaType, number: int, framework: Framework) -> None:
    elastic = job.elastic_policy if type == framework.scaled_type else None
    minimum = (elastic.min_replicas if elastic else None) or 0
    maximum = elastic.max_replicas if elastic else None
    if number < minimum or (maximum is not None and number > maximum):
        limits = f"from {minimum} to {maximum}" if maximum is not None else f"at least {minimum}"
        raise UsageError(f"{job.name} can have {limits} replicas of type {type}, not {number}")


def types_in_order(job: Job, framework: Framework) -> Iterator[ReplicaType]:
    """Yield the job's replica types in the order in which they decide its outcome."""
    return (type for type in framework.replica_types if type in job.replicas)


# -- observing ------------------------------------------------------------------------------------


def observe_replicas(job: Job, observed: ObservedReplicas, framework: Framework) -> JobReplicas:
    """Combine what is observed of each replica with its record. Decides nothing."""
    attempts: dict[ReplicaId, list[ObservedReplica]] = {}
    for attempt in observed.replicas:
        attempts.setdefault(attempt.id, []).append(attempt)
    replicas = tuple(
        _replica_state(ReplicaId(type, index), attempts, job=job, framework=framework)
        for type in types_in_order(job, framework)
        for index in range(desired_replicas(job, type, framework))
    )
    # Those that the job has were taken out of `attempts`.
    scaled_down = {str(id): seen for id, seen in attempts.items() if _had_replica(job, id)}
    keys = {replica.key for replica in replicas}
    orphans = {key: record for key, record in job.status.records.items() if key not in keys}
    return JobReplicas(
        replicas=replicas,
        scaled_down=tuple(attempt for seen in scaled_down.values() for attempt in seen),
        foreign=tuple(
            attempt
            for id, seen in attempts.items()
            if not _had_replica(job, id)
            for attempt in seen
        ),
        records={
            key: _release_orphan(orphans.get(key) or ReplicaRecord(), scaled_down.get(key, ()))
            for key in {**orphans, **scaled_down}
        },
    )


def _replica_state(
    id: ReplicaId,
    attempts: dict[ReplicaId, list[ObservedReplica]],
    *,
    job: Job,
    framework: Framework,
) -> ReplicaState:
    """Return the state of a replica; its attempts are removed from ``attempts``."""
    seen: Sequence[ObservedReplica] = attempts.pop(id, ())
    key = str(id)
    before = job.status.records.get(key) or ReplicaRecord()
    attempt = current_attempt(before, seen)
    surplus = tuple(other for other in seen if other is not attempt)
    record = update_record(before, attempt, surplus=surplus)
    # The record comes first: pods of finished replicas may be deleted, which undoes nothing.
    if (final := final_state(record)) is not None:
        state = final
    elif attempt is not None:
        state = _attempt_state(attempt, job, framework)
    else:
        state = RunState.MISSING if record.current else RunState.ABSENT
    restarted = record.restarts > before.restarts
    return ReplicaState(id, key, state, record, attempt, surplus, restarted)


def _attempt_state(attempt: ObservedReplica, job: Job, framework: Framework) -> RunState:
    # A pod that is being deleted often fails by that: its exit code says nothing about its program.
    if attempt.deleting:
        return RunState.TERMINATING
    if attempt.phase is ReplicaPhase.RUNNING:
        return RunState.ACTIVE
    if attempt.phase is ReplicaPhase.PENDING:
        return RunState.PENDING
    if will_restart(attempt, job, framework):
        return RunState.RESTARTING
    return RunState.SUCCEEDED if attempt.phase is ReplicaPhase.SUCCEEDED else RunState.FAILED


def _had_replica(job: Job, id: ReplicaId) -> bool:
    """Return whether the job had this replica before it was scaled down.

    A pod of a type that the job neither knows nor ever created carries its labels by mistake.
    """
    return (id.type in job.replicas and id.index >= 0) or str(id) in job.status.records


def _release_orphan(record: ReplicaRecord, seen: Sequence[ObservedReplica]) -> ReplicaRecord:
    """Return the record of a replica that was scaled down; it is complete if it succeeded first."""
    if not seen and not record.current and not record.past:
        return record
    attempt = current_attempt(record, seen)
    surplus = [other for other in seen if other is not attempt]
    record = update_record(record, attempt, surplus=surplus)
    if attempt and attempt.phase is ReplicaPhase.SUCCEEDED and not attempt.deleting:
        record = msgspec.structs.replace(record, completed=True, exit_code=attempt.exit_code)
    return release_attempt(record, seen=seen)


# -- recording ------------------------------------------------------------------------------------


def record_outcome(
    replica: ReplicaState, *, now: datetime, backoff: RestartBackoff
) -> ReplicaState:
    """Record how a replica of a running job ended, and count its restart."""
    if replica.state in DUE_STATES:
        record = count_restart(
            replica.record,
            attempt=replica.attempt,
            seen=replica.attempts,
            now=now,
            backoff=backoff,
        )
        return msgspec.structs.replace(replica, record=record)
    return record_failure(replica) if replica.state is RunState.FAILED else record_success(replica)


def record_job_restart(
    job_replicas: JobReplicas, *, restarts: int, now: datetime, backoff: RestartBackoff
) -> JobReplicas:
    """Release all attempts, because some failed: this is restart number ``restarts`` of the job."""
    retry_at = now + timedelta(seconds=backoff_delay(restarts, backoff))

    def release(replica: ReplicaState) -> ReplicaState:
        record = reset_record(replica.record, seen=replica.attempts)
        if replica.state in DUE_STATES:
            reason = exit_reason(replica.attempt)
            record = msgspec.structs.replace(record, exit_code=replica.exit_code, reason=reason)
        return ReplicaState(
            replica.id,
            replica.key,
            RunState.ABSENT,
            msgspec.structs.replace(record, retry_at=retry_at),
            surplus=replica.attempts,
        )

    return msgspec.structs.replace(
        job_replicas,
        replicas=tuple(map(release, job_replicas.replicas)),
        records={
            key: msgspec.structs.replace(record, completed=False, failed=False)
            for key, record in job_replicas.records.items()
        },
    )


def record_success(replica: ReplicaState) -> ReplicaState:
    """Record that a replica succeeded, if it did; other ends are not recorded."""
    if replica.state is not RunState.SUCCEEDED or replica.record.completed:
        return replica
    record = msgspec.structs.replace(
        replica.record, completed=True, exit_code=replica.exit_code, reason=""
    )
    return msgspec.structs.replace(replica, record=record)


def record_failure(replica: ReplicaState) -> ReplicaState:
    """Record how a replica of a failed job ended; nothing is restarted any more."""
    failed = (RunState.FAILED, RunState.RESTARTING, RunState.MISSING)
    if replica.state not in failed or replica.record.failed:
        return record_success(replica)
    record = msgspec.structs.replace(
        replica.record,
        failed=True,
        exit_code=replica.exit_code,
        reason=exit_reason(replica.attempt),
    )
    return msgspec.structs.replace(replica, record=record)


def record_suspension(replica: ReplicaState) -> ReplicaState:
    """Record that a replica is suspended: complete, or to be recreated without counting that."""
    record = release_attempt(record_success(replica).record, seen=replica.attempts)
    state = final_state(record) or RunState.ABSENT
    return msgspec.structs.replace(replica, record=record, state=state)


def final_state(record: ReplicaRecord) -> RunState | None:
    """Return how a replica ended for good, or None if it did not."""
    if record.completed:
        return RunState.SUCCEEDED
    return RunState.FAILED if record.failed else None


def collect_records(
    job_replicas: JobReplicas, replicas: Iterable[ReplicaState]
) -> dict[str, ReplicaRecord]:
    """Return all records that are not empty, those of scaled-down replicas last."""
    empty = ReplicaRecord()
    records = {**{replica.key: replica.record for replica in replicas}, **job_replicas.records}
    return {key: record for key, record in records.items() if record != empty}


def exit_events(job: Job, replicas: Iterable[ReplicaState]) -> Iterator[Event]:
    """Yield one event for each end that is recorded now."""
    ended = (RunState.SUCCEEDED, RunState.FAILED, RunState.RESTARTING)
    for replica in replicas:
        code, record = replica.exit_code, replica.record
        if replica.state in ended and code is not None and not (record.completed or record.failed):
            message = messages.exited_message(job, replica.key, code)
            yield Event("Normal", "ExitedWithCode", message, exit_code=code)


# -- counting -------------------------------------------------------------------------------------


def count_replicas(
    job: Job, framework: Framework, replicas: Iterable[ReplicaState]
) -> dict[ReplicaType, ReplicaCounts]:
    """Count the replicas of each type by state, each once, in the order in which types decide.

    A replica that succeeded is counted from its record, so also after its pod is gone. (Kubeflow
    forgets it then, and creates it again.)
    """
    states: Counter[tuple[ReplicaType, RunState]] = Counter()
    restarting: Counter[ReplicaType] = Counter()
    retries: Counter[ReplicaType] = Counter()
    evicted: Counter[ReplicaType] = Counter()
    first_succeeded: set[ReplicaType] = set()
    for replica in replicas:
        type = replica.id.type
        states[type, replica.state] += 1
        restarting[type] += replica.needs_restart
        retries[type] += replica.record.restarts + (replica.state in DUE_STATES)
        evicted[type] += replica.is_eviction
        if replica.id.index == 0 and replica.state is RunState.SUCCEEDED:
            first_succeeded.add(type)
    return {
        type: ReplicaCounts(
            expected=desired_replicas(job, type, framework),
            active=states[type, RunState.ACTIVE],
            succeeded=states[type, RunState.SUCCEEDED],
            failed=states[type, RunState.FAILED],
            evicted=evicted[type],
            restarting=restarting[type],
            retries=retries[type],
            first_succeeded=type in first_succeeded,
        )
        for type in types_in_order(job, framework)
    }


def build_replica_statuses(
    job: Job, framework: Framework, counts: Mapping[ReplicaType, ReplicaCounts]
) -> dict[ReplicaType, ReplicaStatus]:
    """Return Kubeflow's ``replicaStatuses``; ``failed`` includes replicas to be restarted.

    Of types that Kubeflow runs as a Job of Kubernetes it is the number of all failures.
    """
    return {
        type: ReplicaStatus(
            active=count.active,
            succeeded=count.succeeded,
            failed=count.failed
            + (count.retries if type in framework.batch_types else count.restarting),
            selector=_scale_selector(job, framework, type),
        )
        for type, count in counts.items()
    }


def fold_counts(statuses: Mapping[ReplicaType, ReplicaStatus]) -> dict[ReplicaType, ReplicaStatus]:
    """Return the statuses of a job that succeeded: running replicas count as succeeded too."""
    return {
        type: msgspec.structs.replace(status, active=0, succeeded=status.succeeded + status.active)
        for type, status in statuses.items()
    }


def _scale_selector(job: Job, framework: Framework, type: ReplicaType) -> str:
    """Return the label selector that the scale subresource reads from the status."""
    if framework.scaled_type is None:
        return ""
    labels = type_labels(job, framework, type)
    return ",".join(f"{key}={value}" for key, value in labels.items())
