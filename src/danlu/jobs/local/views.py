"""Build the views of a job and its replicas that commands show."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from danlu.engine.types import UsageRate
from danlu.jobs.local.replica_attempt import ReplicaAttempt
from danlu.jobs.types import KILLED, JobView, ReplicaStateName, ReplicaView
from danlu.training.dependencies import describe_dependencies
from danlu.training.framework import Framework
from danlu.training.replicas import replica_ids
from danlu.training.types import ConditionType, Job, JobStatus, ReplicaId, ReplicaPhase

_PHASE_STATES: Mapping[ReplicaPhase, ReplicaStateName] = {
    ReplicaPhase.PENDING: "Pending",
    ReplicaPhase.RUNNING: "Running",
    ReplicaPhase.SUCCEEDED: "Succeeded",
    ReplicaPhase.FAILED: "Failed",
}


def replica_views(
    job: Job,
    framework: Framework,
    latest: Mapping[ReplicaId, ReplicaAttempt],
    used: Mapping[str, UsageRate],
) -> tuple[ReplicaView, ...]:
    """Return a view of each replica the job should have, in order."""
    return tuple(
        _view_of_attempt(job, framework, latest[id], used.get(latest[id].uid))
        if id in latest and not _awaits_resumption(job, latest[id])
        else _view_without_attempt(job, framework, id)
        for id in replica_ids(job, framework)
    )


def _awaits_resumption(job: Job, attempt: ReplicaAttempt) -> bool:
    """Return whether an attempt ended because the job is suspended, whatever its exit code."""
    ended = attempt.exit is not None and not job.status.record(attempt.id).completed
    return ended and job.run_policy.suspend and not job.status.finished


def _view_without_attempt(job: Job, framework: Framework, id: ReplicaId) -> ReplicaView:
    waits = ""
    if job.status.record(id).retry_at:
        waits = "its next attempt"
    elif job.run_policy.suspend:
        waits = "the job to be resumed"
    elif not job.status.finished:
        waits = describe_dependencies(job, framework, id.type)
    state: ReplicaStateName = "Waiting" if waits else "Pending"
    return ReplicaView(id, state, host=framework.pod_name(job, id), waits=waits)


def _view_of_attempt(
    job: Job, framework: Framework, attempt: ReplicaAttempt, used: UsageRate | None
) -> ReplicaView:
    exit = attempt.exit
    measured = exit is None and used is not None
    return ReplicaView(
        id=attempt.id,
        state=_attempt_state(attempt),
        attempt=attempt.number,
        restarts=job.status.restart_count(attempt.id),
        exit_code=None if exit is None else exit.code,
        reason=_failure_reason(attempt),
        message=exit.message if exit is not None and exit.code else "",
        cpu=used.cpu if used and measured else None,
        memory=used.memory if used and measured else None,
        gpus=attempt.gpus,
        gpu_utilization=used.gpu if used and measured else None,
        gpu_memory=used.gpu_memory if used and measured else None,
        pid=attempt.running.pid if attempt.running else None,
        host=framework.pod_name(job, attempt.id),
        waits=attempt.waiting_reason,
        started=attempt.started,
        finished=attempt.finished,
    )


def _failure_reason(attempt: ReplicaAttempt) -> str:
    if attempt.was_killed:
        return KILLED
    return attempt.exit.reason if attempt.exit and attempt.exit.code else ""


def _attempt_state(attempt: ReplicaAttempt) -> ReplicaStateName:
    if attempt.waiting_reason:
        return "Waiting"
    if attempt.phase is ReplicaPhase.FAILED and attempt.stopped:
        return "Stopped"
    return _PHASE_STATES[attempt.phase]


def job_state(job: Job, latest: Mapping[ReplicaId, ReplicaAttempt]) -> str:
    """Return a job's state as one word."""
    if job.status.is_finishing:
        return "Finishing"
    waiting = any(attempt.waiting_reason for attempt in latest.values())
    if waiting and not job.status.finished:
        return "Waiting"
    state = latest_condition(job.status)
    running = any(attempt.phase is ReplicaPhase.RUNNING for attempt in latest.values())
    return "Suspending" if running and state == ConditionType.SUSPENDED else state


def latest_condition(status: JobStatus) -> str:
    """Return the type of the latest condition that is true."""
    true = [condition.type for condition in status.conditions if condition.status == "True"]
    return str(true[-1]) if true else "Pending"


def mark_lost(view: JobView, error: str) -> JobView:
    """Return the view of a job whose supervisor died; ``error`` is the last line it printed."""
    replicas = tuple(
        msgspec.structs.replace(replica, state="Failed", reason="Lost", pid=None, waits="")
        if replica.state in ("Running", "Pending", "Waiting")
        else replica
        for replica in view.replicas
    )
    warnings = view.warnings
    if error:
        warnings = (*warnings, f"the supervisor died: {error}")
    return msgspec.structs.replace(view, state="Lost", replicas=replicas, warnings=warnings)
