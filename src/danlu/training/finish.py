"""The end of a job: the time its other replicas get once it succeeded, and the clean-up.

*Waiting.* If the master ends, a worker may still be saving its shard. So replicas that end by
themselves get time, and the job keeps running meanwhile; servers (``Framework.server_types``:
parameter servers, MPI's workers) are not waited for. The outcome is settled: a replica that fails
now is reported, but not restarted, and changes nothing. The wait ends when no such replica runs any
more, when none has made progress for ``FinishPolicy.idle`` seconds (output, CPU use, or the end of
another replica; a driver that cannot see it leaves ``ObservedReplica.active`` unset), after
``FinishPolicy.timeout`` seconds, at the job's active deadline, or when it is suspended. Kubeflow
has no such phase: it applies only if the driver, or the annotation ``danlu.dev/finish-timeout``,
gives a timeout, so jobs of other clients keep Kubeflow's rule.

*Clean-up.* The clean pod policy applies however the job ended (Kubeflow 1.9 deletes all pods after
a limit was exceeded); a replica that Kubeflow runs as a batch Job is stopped under any policy, as
with that. The time to live counts from the completion time; if a job has none (Kubeflow
sets none after some failures), from its final condition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from danlu.training import messages
from danlu.training.conditions import add_condition, find_condition
from danlu.training.first_failure import update_first_failure
from danlu.training.framework import Framework
from danlu.training.names import FINISH_TIMEOUT_ANNOTATION
from danlu.training.replicas import (
    JobReplicas,
    ReplicaState,
    RunState,
    build_replica_statuses,
    collect_records,
    count_replicas,
    final_state,
    fold_counts,
    record_failure,
)
from danlu.training.restarts import exit_reason
from danlu.training.types import (
    CleanPodPolicy,
    ConditionType,
    CreateReplica,
    Decision,
    DeleteJob,
    DeleteReplica,
    Event,
    FinishPhase,
    FinishPolicy,
    Job,
    JobStatus,
    ObservedReplica,
    ObservedReplicas,
    ReplicaPhase,
    ReplicaStatus,
    ReplicaType,
)
from danlu.util.human import format_duration, parse_duration

Action = CreateReplica | DeleteReplica | DeleteJob | Event

ALIVE_PHASES = (ReplicaPhase.RUNNING, ReplicaPhase.PENDING)
ALIVE_STATES = (RunState.ACTIVE, RunState.PENDING)
FAILED_STATES = (RunState.FAILED, RunState.RESTARTING, RunState.MISSING, RunState.ABSENT)


class FinalCondition(msgspec.Struct, frozen=True):
    """How a job ends: its final condition, and the type of the event that reports it."""

    type: Literal[ConditionType.SUCCEEDED, ConditionType.FAILED]
    reason: str
    message: str
    event_type: Literal["Normal", "Warning"] = "Normal"


# -- waiting for the other replicas ---------------------------------------------------------------


def effective_policy(job: Job, policy: FinishPolicy) -> FinishPolicy:
    """Return the driver's policy with the timeout from the job's annotation, if it has one."""
    text = job.annotations.get(FINISH_TIMEOUT_ANNOTATION, "")
    try:
        return msgspec.structs.replace(policy, timeout=parse_duration(text)) if text else policy
    except ValueError:
        return policy


def decide_finishing(
    job: Job,
    status: JobStatus,
    observed: ObservedReplicas,
    job_replicas: JobReplicas,
    *,
    framework: Framework,
    policy: FinishPolicy,
    decider: ReplicaType,
    final: FinalCondition,
    events: tuple[Event, ...],
    deadline: float | None,
    now: datetime,
) -> Decision:
    """Wait for the replicas that end by themselves, or end the job that has succeeded.

    ``decider`` is the type whose success ends the job, ``deadline`` the seconds until the job's
    active deadline.
    """
    replicas = job_replicas.replicas
    phase = status.finishing or FinishPhase(now, decider)
    failures = [replica for replica in replicas if _is_new_failure(replica)]
    if failures:
        phase = _add_notes(phase, map(_failure_note, failures))
    running = [
        replica
        for replica in replicas
        if replica.state in ALIVE_STATES and replica.id.type not in framework.server_types
    ]
    until = _wait_limit(running, replicas, phase, policy=policy, deadline=deadline, now=now)
    ended = tuple(map(_record_last_end, replicas))
    records = collect_records(job_replicas, ended)
    # What would have been restarted counts as succeeded or failed from now on.
    counts = count_replicas(job, framework, ended)
    status = msgspec.structs.replace(
        status, replica_statuses=build_replica_statuses(job, framework, counts)
    )
    if running and until > now and not job.run_policy.suspend:
        events = (*events, *_note_events(job, status.finishing, phase))
        if status.finishing is None:
            events = (*events, _begin_event(job, running, policy))
        status = msgspec.structs.replace(
            status, records=records, first_failure=None, finishing=phase
        )
        # What ended is kept, so that its logs can be read.
        deletions = [
            *(surplus for replica in replicas for surplus in replica.surplus),
            *job_replicas.scaled_down,
        ]
        actions: tuple[Action, ...] = (
            *delete_replicas(deletions, "no longer part of the job"),
            *events,
        )
        return Decision(actions, status, (until - now).total_seconds())
    if running:
        stops = policy.stops_all or _deletes_running_replicas(job)
        phase = _add_notes(phase, [_unfinished_note(running, phase, stops=stops, now=now)])
    message = " ".join((final.message, *(f"{note}." for note in phase.notes)))
    return finish_job(
        job,
        msgspec.structs.replace(status, records=records, first_failure=None, finishing=phase),
        observed,
        framework=framework,
        final=msgspec.structs.replace(final, message=message),
        events=(*events, *_note_events(job, status.finishing, phase)),
        now=now,
    )


def _wait_limit(
    running: Sequence[ReplicaState],
    replicas: Sequence[ReplicaState],
    phase: FinishPhase,
    *,
    policy: FinishPolicy,
    deadline: float | None,
    now: datetime,
) -> datetime:
    """Return when the wait ends if nothing else happens."""
    limits = [phase.since + timedelta(seconds=policy.timeout or 0.0)]
    if deadline is not None:
        limits.append(now + timedelta(seconds=deadline))
    progress = [
        replica.attempt.active if replica.attempt is not None else None for replica in running
    ]
    known = [time for time in progress if time is not None]
    # Idleness is judged only if the driver sees the progress of every replica.
    if len(known) == len(progress):
        attempts = [replica.attempt for replica in replicas if replica.attempt is not None]
        ends = [attempt.finished for attempt in attempts if attempt.finished is not None]
        limits.append(max((phase.since, *known, *ends)) + timedelta(seconds=policy.idle))
    return min(limits)


def _record_last_end(replica: ReplicaState) -> ReplicaState:
    """Record an end that no restart follows any more."""
    record = replica.record
    if replica.state is RunState.RESTARTING and not replica.needs_restart:
        record = msgspec.structs.replace(record, completed=True, exit_code=0, reason="")
    elif replica.state is RunState.ABSENT and replica.needs_restart:
        record = msgspec.structs.replace(record, failed=True, retry_at=None)
    else:
        record = record_failure(replica).record
    state = final_state(record) or replica.state
    return msgspec.structs.replace(replica, record=record, state=state)


def _is_new_failure(replica: ReplicaState) -> bool:
    """Return whether a replica failed without a restart and this was not reported yet."""
    if replica.record.failed or replica.state not in FAILED_STATES:
        return False
    return replica.needs_restart or replica.state is RunState.FAILED


def _failure_note(replica: ReplicaState) -> str:
    attempt, record = replica.attempt, replica.record
    code = attempt.exit_code if attempt is not None else record.exit_code
    reason = record.reason if attempt is None and record.reason else exit_reason(attempt)
    cause = f"exit code {code}" if code is not None else reason
    return f"{replica.key} failed ({cause}) and was not restarted: the job had succeeded"


def _unfinished_note(
    running: Sequence[ReplicaState], phase: FinishPhase, *, stops: bool, now: datetime
) -> str:
    verb = "were" if len(running) > 1 else "was"
    state = "stopped while still running" if stops else "still running"
    after = format_duration((now - phase.since).total_seconds())
    names = messages.name_some([replica.id for replica in running])
    return f"{names} {verb} {state}, {after} after the job succeeded"


def _add_notes(phase: FinishPhase, notes: Iterable[str]) -> FinishPhase:
    return msgspec.structs.replace(phase, notes=(*phase.notes, *notes))


def _note_events(job: Job, before: FinishPhase | None, after: FinishPhase) -> Iterator[Event]:
    """Yield an event for each note that is new."""
    known = len(before.notes) if before is not None else 0
    for note in after.notes[known:]:
        yield Event("Warning", messages.event_reason(job, "Unfinished"), f"{note}.")


def _begin_event(job: Job, running: Sequence[ReplicaState], policy: FinishPolicy) -> Event:
    limit = format_duration(policy.timeout or 0.0)
    names = messages.name_some([replica.id for replica in running])
    message = f"waiting up to {limit} for {names}"
    return Event(
        "Normal",
        messages.event_reason(job, "Finishing"),
        f"{job.kind} {job.name} has succeeded; {message}.",
    )


# -- the end --------------------------------------------------------------------------------------


def finish_job(
    job: Job,
    status: JobStatus,
    observed: ObservedReplicas,
    *,
    framework: Framework,
    final: FinalCondition,
    events: tuple[Event, ...],
    now: datetime,
) -> Decision:
    """End the job. ``status`` is complete except for the end itself."""
    conditions = add_condition(
        status.conditions, final.type, reason=final.reason, message=final.message, now=now
    )
    status = msgspec.structs.replace(status, conditions=conditions, completion_time=now)
    if final.type is ConditionType.SUCCEEDED:
        statuses = fold_counts(status.replica_statuses)
        status = msgspec.structs.replace(status, replica_statuses=statuses, first_failure=None)
    event = Event(final.event_type, final.reason, final.message)
    actions: tuple[Action, ...] = (
        *_clean_up_replicas(job, observed, framework),
        *events,
        event,
    )
    return Decision(actions, status, _seconds_to_live(job, status, now))


def decide_after_end(
    job: Job, observed: ObservedReplicas, framework: Framework, *, now: datetime
) -> Decision:
    """Return what is left to do for a finished job. Its outcome never changes."""
    status = _set_completion_time(job.status, now)
    if not status.has_condition(ConditionType.SUCCEEDED):
        statuses = _limit_active_counts(status, observed)
        failure = update_first_failure(status, observed.replicas)
        status = msgspec.structs.replace(status, replica_statuses=statuses, first_failure=failure)
    seconds = _seconds_to_live(job, status, now)
    deletions = tuple(_clean_up_replicas(job, observed, framework))
    if seconds is not None and seconds <= 0:
        return Decision((*deletions, DeleteJob()), status)
    return Decision(deletions, status, seconds)


def delete_replicas(replicas: Iterable[ObservedReplica], why: str) -> Iterator[DeleteReplica]:
    """Delete these attempts, except those that are being deleted already."""
    return (
        DeleteReplica(replica.id, replica.uid, why) for replica in replicas if not replica.deleting
    )


def _deletes_running_replicas(job: Job) -> bool:
    """Return whether replicas that still run are deleted when the job is finished.

    A job that is suspended while its last replicas finish must not leave them running.
    """
    policy = job.run_policy
    suspended = policy.suspend and job.status.finishing is not None
    return suspended or policy.clean_pod_policy is not CleanPodPolicy.NONE


def _clean_up_replicas(
    job: Job, observed: ObservedReplicas, framework: Framework
) -> Iterator[DeleteReplica]:
    everything = job.run_policy.clean_pod_policy is CleanPodPolicy.ALL
    alive = _deletes_running_replicas(job)
    replicas = [
        replica
        for replica in observed.replicas
        if everything
        or (replica.phase in ALIVE_PHASES and (alive or replica.id.type in framework.batch_types))
    ]
    return delete_replicas(replicas, "the job is finished")


def _set_completion_time(status: JobStatus, now: datetime) -> JobStatus:
    if status.completion_time is not None:
        return status
    final = find_condition(status.conditions, ConditionType.FAILED)
    if final is None or final.status != "True":
        final = find_condition(status.conditions, ConditionType.SUCCEEDED)
    time = final.last_transition_time if final is not None else None
    return msgspec.structs.replace(status, completion_time=time or now)


def _limit_active_counts(
    status: JobStatus, observed: ObservedReplicas
) -> dict[ReplicaType, ReplicaStatus]:
    """Return the replica statuses, reporting no more active replicas than are running."""
    active = Counter(
        replica.id.type
        for replica in observed.replicas
        if replica.phase is ReplicaPhase.RUNNING and not replica.deleting
    )
    return {
        type: msgspec.structs.replace(counts, active=min(counts.active, active[type]))
        for type, counts in status.replica_statuses.items()
    }


def _seconds_to_live(job: Job, status: JobStatus, now: datetime) -> float | None:
    """Return the seconds until the job is deleted (0 if it is time), None for never."""
    ttl = job.run_policy.ttl_seconds_after_finished
    if ttl is None or status.completion_time is None:
        return None
    return max(0.0, ttl - (now - status.completion_time).total_seconds())
