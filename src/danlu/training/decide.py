"""Decide what to do for a training job, from its spec, its status and what is observed.

:func:`decide` is pure. All state it needs is in the job's status, so a controller may forget
everything else: if it crashes between writing the status and acting on it, it makes the same
decision again. A job for which nothing is left to do gets no actions and an unchanged status.

The phases, in this fixed order:

1. A job that another controller manages, or that is being deleted, is left alone.
2. A finished job is cleaned up (:mod:`.finish`); its outcome never changes.
3. What is observed of each replica is combined with its record (:mod:`.replicas`).
4. All replicas of a suspended job are deleted.
5. The framework evaluates the counts. *Succeeded* and *Failed* end the job; only then are the
   back-off limit (:mod:`.restarts`) and the active deadline checked. So a job that is done needs no
   restart and misses no deadline, and one that failed names the replica. After a success the other
   replicas may get time to finish (:mod:`.finish`).
6. Due restarts are counted: of replicas, or of the job if all are recreated together. The actions
   follow from the state of each replica. A replica is created only after nothing is left of its
   previous attempts, nor of any replica's if they are recreated together, so that no attempt finds
   one of the round before; and only once its dependencies are met (:mod:`.dependencies`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from danlu.training import messages
from danlu.training.conditions import FINAL, set_condition
from danlu.training.dependencies import find_failed_stage, unmet_dependencies
from danlu.training.finish import (
    Action,
    FinalCondition,
    decide_after_end,
    decide_finishing,
    delete_replicas,
    effective_policy,
    finish_job,
)
from danlu.training.first_failure import failure_that_ended_job, find_first_failure
from danlu.training.framework import Framework, ReplicaCounts, Verdict
from danlu.training.replicas import (
    DUE_STATES,
    JobReplicas,
    ReplicaState,
    RunState,
    build_replica_statuses,
    collect_records,
    count_replicas,
    exit_events,
    observe_replicas,
    record_failure,
    record_job_restart,
    record_outcome,
    record_success,
    record_suspension,
)
from danlu.training.restarts import EVICTED, exceeds_backoff_limit
from danlu.training.types import (
    ConditionType,
    CreateReplica,
    Decision,
    DeleteReplica,
    Event,
    FinishPolicy,
    Job,
    JobStatus,
    ObservedReplicas,
    ReplicaType,
    RestartBackoff,
    RestartPolicy,
)

DEFAULT_BACKOFF = RestartBackoff()
KUBEFLOW_FINISH_POLICY = FinishPolicy()

CountsByType = Mapping[ReplicaType, ReplicaCounts]


def decide(
    job: Job,
    observed: ObservedReplicas,
    framework: Framework,
    *,
    now: datetime,
    backoff: RestartBackoff = DEFAULT_BACKOFF,
    finish: FinishPolicy = KUBEFLOW_FINISH_POLICY,
) -> Decision:
    """Return the actions for ``job``, its new status, and when to decide again.

    Args:
        job: The job, with the status of the previous decision.
        observed: Everything the driver sees of the job's replicas.
        framework: The framework of the job's kind.
        now: An aware datetime.
        backoff: How restarts are delayed.
        finish: How long other replicas may go on after the job succeeded.

    Raises nothing. ``requeue_after`` is exact; 0.0 means now.
    """
    if job.deleting or job.run_policy.managed_by not in ("", framework.manager):
        return Decision((), job.status)
    if job.status.finished:
        return decide_after_end(job, observed, framework, now=now)
    job = _add_created_condition(job, now)
    replicas = observe_replicas(job, observed, framework)
    if job.run_policy.suspend and job.status.finishing is None:
        return _suspend_job(job, observed, replicas, framework=framework, now=now)
    return _decide_active(
        job,
        observed,
        replicas,
        framework=framework,
        now=now,
        backoff=backoff,
        policy=effective_policy(job, finish),
    )


def _add_created_condition(job: Job, now: datetime) -> Job:
    status = set_condition(
        job.status,
        ConditionType.CREATED,
        reason=messages.event_reason(job, "Created"),
        message=messages.created_message(job),
        now=now,
    )
    return msgspec.structs.replace(job, status=status)


def _decide_active(
    job: Job,
    observed: ObservedReplicas,
    job_replicas: JobReplicas,
    *,
    framework: Framework,
    now: datetime,
    backoff: RestartBackoff,
    policy: FinishPolicy,
) -> Decision:
    """Decide about a job that is neither finished nor suspended: end it, or go on."""
    status, events = _resume_job(job, now=now)
    replicas = job_replicas.replicas
    counts = count_replicas(job, framework, replicas)
    if status.finishing is not None:
        verdict: Verdict | None = Verdict(ConditionType.SUCCEEDED, status.finishing.type)
    else:
        verdict = _evaluate_counts(job, framework, counts)
    deadline = _seconds_to_deadline(job, status.start_time, now=now)
    status = msgspec.structs.replace(
        status,
        replica_statuses=build_replica_statuses(job, framework, counts),
        first_failure=find_first_failure(job, replicas, now=now),
    )
    events = (*events, *exit_events(job, replicas))
    final = _final_condition(
        job, job_replicas, counts, framework=framework, verdict=verdict, deadline=deadline
    )
    waits = policy.timeout is not None or status.finishing is not None
    if final is not None and final.type is ConditionType.SUCCEEDED and verdict and waits:
        return decide_finishing(
            job,
            status,
            observed,
            job_replicas,
            framework=framework,
            policy=policy,
            decider=verdict.replica_type,
            final=final,
            events=events,
            deadline=deadline,
            now=now,
        )
    if final is not None:
        record = record_success if final.type is ConditionType.SUCCEEDED else record_failure
        status = msgspec.structs.replace(
            status,
            records=collect_records(job_replicas, map(record, replicas)),
            first_failure=status.first_failure or failure_that_ended_job(replicas, now=now),
        )
        return finish_job(
            job, status, observed, framework=framework, final=final, events=events, now=now
        )
    status = _apply_verdict(job, framework, status, counts, verdict=verdict, now=now)
    if job.job_restart_policy is not None and any(map(_is_due, replicas)):
        restarts = status.restarts + 1
        job_replicas = record_job_restart(job_replicas, restarts=restarts, now=now, backoff=backoff)
        after: Sequence[ReplicaState] = job_replicas.replicas
        # Without the replicas that ran or had succeeded until now, as the next decision counts.
        counts = count_replicas(job, framework, after)
        statuses = build_replica_statuses(job, framework, counts)
        status = msgspec.structs.replace(status, restarts=restarts, replica_statuses=statuses)
    else:
        after = [record_outcome(replica, now=now, backoff=backoff) for replica in replicas]
    status = msgspec.structs.replace(status, records=collect_records(job_replicas, after))
    waiting = {type for type in counts if unmet_dependencies(job, framework, type, counts)}
    ready = [replica for replica in after if replica.id.type not in waiting]
    may_create = job.job_restart_policy is None or not _has_remains(job_replicas, after)
    actions: tuple[Action, ...] = (
        *_delete_actions(job_replicas, after),
        *_create_actions(ready if may_create else (), now=now),
        *events,
        *_restart_events(job, framework, replicas, restarts=status.restarts),
    )
    return Decision(actions, status, _next_check(deadline, ready, now=now))


def _evaluate_counts(job: Job, framework: Framework, counts: CountsByType) -> Verdict | None:
    """Return the framework's verdict; a job also fails if others wait for a type that failed."""
    verdict = framework.evaluate(job, counts)
    if verdict is not None and verdict.condition in FINAL:
        return verdict
    stage = find_failed_stage(job, counts)
    return verdict if stage is None else Verdict(ConditionType.FAILED, stage)


# -- the outcome ----------------------------------------------------------------------------------


def _final_condition(
    job: Job,
    job_replicas: JobReplicas,
    counts: CountsByType,
    *,
    framework: Framework,
    verdict: Verdict | None,
    deadline: float | None,
) -> FinalCondition | None:
    """Return the condition with which the job ends now, None if it goes on."""
    if verdict is not None and verdict.condition is ConditionType.SUCCEEDED:
        reason = messages.event_reason(job, "Succeeded")
        message = messages.fill_messages(job, framework, verdict.replica_type).succeeded
        return FinalCondition(ConditionType.SUCCEEDED, reason, message)
    replicas, counted = job_replicas.replicas, framework.batch_types
    if verdict is not None and verdict.condition is ConditionType.FAILED:
        return _failed_condition(job, framework, counts, type=verdict.replica_type)
    reason = messages.event_reason(job, "Failed")
    due = sum(map(_is_due, job_replicas.select_types(counted)))
    made = job_replicas.count_restarts(counted) + job.status.restarts
    if exceeds_backoff_limit(job, framework, made=made, due=due):
        message = messages.backoff_limit_message(job)
        return FinalCondition(ConditionType.FAILED, framework.backoff_reason or reason, message)
    if deadline is not None and deadline <= 0:
        ended = (RunState.SUCCEEDED, RunState.FAILED)
        unfinished = [replica.id for replica in replicas if replica.state not in ended]
        message = messages.deadline_message(job, unfinished)
        return FinalCondition(ConditionType.FAILED, framework.deadline_reason or reason, message)
    return None


def _failed_condition(
    job: Job, framework: Framework, counts: CountsByType, *, type: ReplicaType
) -> FinalCondition:
    count = counts.get(type, ReplicaCounts())
    words = messages.fill_messages(
        job,
        framework,
        type,
        count=count.failed or count.restarting,
        evicted=count.evicted,
        expected=count.expected,
    )
    if count.evicted and words.evicted:
        reason = messages.event_reason(job, EVICTED)
        return FinalCondition(ConditionType.FAILED, reason, words.evicted, event_type="Warning")
    spec = job.replicas.get(type)
    by_exit_code = spec is not None and spec.restart_policy is RestartPolicy.EXIT_CODE
    message = words.failed_by_exit_code if by_exit_code else words.failed
    return FinalCondition(ConditionType.FAILED, messages.event_reason(job, "Failed"), message)


def _apply_verdict(
    job: Job,
    framework: Framework,
    status: JobStatus,
    counts: CountsByType,
    *,
    verdict: Verdict | None,
    now: datetime,
) -> JobStatus:
    """Return the status of a job that goes on, with the verdict's condition."""
    if verdict is None:
        return status
    type = verdict.replica_type
    if verdict.condition is ConditionType.RESTARTING:
        reason = messages.event_reason(job, "Restarting")
        restarting = counts.get(type, ReplicaCounts()).restarting
        message = messages.fill_messages(job, framework, type, count=restarting).restarting
    else:
        reason = messages.event_reason(job, "Running")
        message = messages.fill_messages(job, framework, type).running
    return set_condition(status, verdict.condition, reason=reason, message=message, now=now)


def _seconds_to_deadline(job: Job, start: datetime | None, *, now: datetime) -> float | None:
    """Return the seconds until the active deadline, or None."""
    limit = job.run_policy.active_deadline_seconds
    if limit is None or start is None:
        return None
    return limit - (now - start).total_seconds()


# -- actions --------------------------------------------------------------------------------------


def _is_due(replica: ReplicaState) -> bool:
    """Return whether a restart of the replica is counted now."""
    return replica.state in DUE_STATES


def _has_remains(job_replicas: JobReplicas, replicas: Sequence[ReplicaState]) -> bool:
    """Return whether attempts exist that are not part of the job any more."""
    return bool(job_replicas.scaled_down) or any(replica.surplus for replica in replicas)


def _delete_actions(
    job_replicas: JobReplicas, replicas: Sequence[ReplicaState]
) -> Iterator[DeleteReplica]:
    """Delete attempts that are restarted, duplicates, and replicas beyond the job's numbers."""
    for replica in replicas:
        if replica.state is RunState.RESTARTING and replica.attempt is not None:
            yield from delete_replicas((replica.attempt,), "it is restarted")
        for attempt in replica.surplus:
            restarted = attempt.uid == replica.record.last
            why = "it is restarted" if restarted else "the replica has another attempt"
            yield from delete_replicas((attempt,), why)
    yield from delete_replicas(job_replicas.scaled_down, "the job was scaled down")


def _create_actions(replicas: Sequence[ReplicaState], *, now: datetime) -> Iterator[CreateReplica]:
    """Create each replica of which nothing is left, once its back-off is over."""
    for replica in replicas:
        time = replica.record.retry_at
        missing = replica.state in (RunState.ABSENT, RunState.MISSING) and not replica.attempts
        if missing and (time is None or time <= now):
            yield CreateReplica(replica.id, replica.record.attempts)


def _restart_events(
    job: Job, framework: Framework, replicas: Sequence[ReplicaState], *, restarts: int
) -> Iterator[Event]:
    """Yield one event for each type with restarts that are counted now.

    ``restarts`` are those of the job so far, if all replicas are recreated together.
    """
    due = [replica.id.type for replica in replicas if _is_due(replica) and replica.needs_restart]
    for type in dict.fromkeys(due):
        words = messages.fill_messages(job, framework, type, count=due.count(type))
        message = words.restarting
        if job.job_restart_policy is not None:
            message = f"{message} {messages.job_restart_message(job.job_restart_policy, restarts)}"
        yield Event("Warning", messages.event_reason(job, "Restarting"), message)


def _next_check(
    deadline: float | None, replicas: Sequence[ReplicaState], *, now: datetime
) -> float | None:
    """Return the seconds until the deadline or the end of a back-off, whichever is first."""
    retries = [replica.record.retry_at for replica in replicas]
    delays = [(time - now).total_seconds() for time in retries if time is not None and time > now]
    return min([*delays, *([] if deadline is None else [deadline])], default=None)


# -- suspending -----------------------------------------------------------------------------------


def _suspend_job(
    job: Job,
    observed: ObservedReplicas,
    job_replicas: JobReplicas,
    *,
    framework: Framework,
    now: datetime,
) -> Decision:
    """Delete all replicas of a job, whatever its clean pod policy, and keep their records.

    Completed replicas stay completed (as in Kubernetes' own Jobs); all others are recreated when
    the job is resumed. This is not a restart: it counts towards no limit and has no back-off.
    """
    replicas = tuple(record_suspension(replica) for replica in job_replicas.replicas)
    status = job.status
    reason, message = messages.event_reason(job, "Suspended"), messages.suspended_message(job)
    for type in (ConditionType.RUNNING, ConditionType.RESTARTING):
        if status.has_condition(type):
            status = set_condition(
                status, type, value="False", reason=reason, message=message, now=now
            )
    status = set_condition(status, ConditionType.SUSPENDED, reason=reason, message=message, now=now)
    status = msgspec.structs.replace(
        status,
        records=collect_records(job_replicas, replicas),
        replica_statuses=build_replica_statuses(
            job, framework, count_replicas(job, framework, replicas)
        ),
        first_failure=find_first_failure(job, replicas, now=now),
    )
    suspended_before = job.status.has_condition(ConditionType.SUSPENDED)
    events = () if suspended_before else (Event("Normal", reason, message),)
    deletions = delete_replicas(observed.replicas, "the job is suspended")
    return Decision((*deletions, *events), status)


def _resume_job(job: Job, *, now: datetime) -> tuple[JobStatus, tuple[Event, ...]]:
    """Return the status of a job that runs, started now if it is new or was suspended.

    The active deadline counts from the start or the last resumption.
    """
    status = job.status
    if not status.has_condition(ConditionType.SUSPENDED):
        return msgspec.structs.replace(status, start_time=status.start_time or now), ()
    reason, message = messages.event_reason(job, "Resumed"), messages.resumed_message(job)
    status = set_condition(
        status, ConditionType.SUSPENDED, value="False", reason=reason, message=message, now=now
    )
    return msgspec.structs.replace(status, start_time=now), (Event("Normal", reason, message),)
