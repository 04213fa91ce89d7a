"""Build the view of a job on a cluster from its object, its pods and what they reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import msgspec

from danlu.jobs.kubernetes.cluster_job import ClusterJob
from danlu.jobs.kubernetes.manifests import COPY_CODE_COMMAND
from danlu.jobs.kubernetes.objects import PodObject, ReportObject
from danlu.jobs.kubernetes.waiting_reasons import NO_REASONS, WaitingReasons
from danlu.jobs.types import JobView, ReplicaCommand, ReplicaStateName, ReplicaView, job_notes
from danlu.kube.core_v1 import ContainerStateTerminated, ContainerStatus
from danlu.kube.pod_waiting import STARTING, UNSCHEDULABLE, waiting_reason
from danlu.training.dependencies import describe_dependencies
from danlu.training.framework import Framework
from danlu.training.names import STOPPED_ANNOTATION
from danlu.training.pod_template import expand_references, find_main_container
from danlu.training.progress import TrainingProgress, read_trainer_status
from danlu.training.replicas import replica_ids
from danlu.training.types import (
    ConditionType,
    FirstFailure,
    Job,
    JobCondition,
    JobStatus,
    ReplicaId,
    ReplicaRecord,
)
from danlu.util.decoding import decode_json

_PHASE_STATES: Mapping[str, ReplicaStateName] = {
    "": "Pending",
    "Pending": "Pending",
    "Running": "Running",
    "Succeeded": "Succeeded",
    "Failed": "Failed",
    "Unknown": "Running",
}

MAX_REPLICAS = 10_000
"""A view has no more: anybody who may create jobs chooses the number."""

WAITING_FOR_POD = "the pod has not been created yet"
WAITING_FOR_RESUMPTION = "the job to be resumed"

# If a job has no condition after this time, there is probably no operator.
_PICKUP_TIMEOUT = timedelta(seconds=15)


# -- the job --------------------------------------------------------------------------------------


def build_view(
    found: ClusterJob,
    *,
    pods: Sequence[PodObject],
    report: ReportObject | None,
    where: str,
    now: datetime,
    reasons: WaitingReasons = NO_REASONS,
) -> JobView:
    """Return the view of a job; ``pods`` and ``report`` are its own.

    ``where`` is the target's name. ``reasons`` are those of
    :func:`~danlu.jobs.kubernetes.waiting_reasons.find_waiting_reasons`.
    """
    framework, newest = found.framework, found.newest_pods(pods)
    job = found.decode(newest)
    status, state = _status_and_state(job, found, pods, now)
    if state == ConditionType.SUSPENDED and reasons.admission:
        state = "Waiting"
    replicas = tuple(
        _explain_waiting(view, pod, job, reasons)
        for view, pod in _replica_views(job, newest, framework)
    )
    if status.has_condition(ConditionType.FAILED) and not status.records:
        status = msgspec.structs.replace(status, first_failure=_earliest_failure(replicas))
    return JobView(
        name=found.unique_name,
        kind=job.kind,
        framework=framework.name,
        state=state,
        status=status,
        replicas=replicas,
        progress=_decode_progress(report) or read_trainer_status(found.job.status),
        warnings=(
            *_job_warnings(job, found, pods, now),
            *(() if status.finished else _scheduling_warnings(replicas)),
            *filter(None, (reasons.evictions,)),
            *job_notes(status),
        ),
        created=found.job.metadata.creation_timestamp,
        where=where,
        labels=found.job.submitted_labels,
    )


def _status_and_state(
    job: Job, found: ClusterJob, pods: Sequence[PodObject], now: datetime
) -> tuple[JobStatus, str]:
    """Return the status, and the state as one word.

    A job with the stopped annotation is suspended for good. As soon as its pods are gone it is
    shown as failed, with a condition of our own.
    """
    why_stopped = job.annotations.get(STOPPED_ANNOTATION)
    if job.status.finished or not why_stopped:
        state = _latest_condition(job.status, pods)
        suspending = state == ConditionType.SUSPENDED and any(map(_may_run, pods))
        return job.status, "Suspending" if suspending else state
    suspended = job.status.has_condition(ConditionType.SUSPENDED)
    # Without an operator nothing sets that condition, and nothing runs.
    if any(map(_may_run, pods)) or not (suspended or _not_picked_up(found, pods, now)):
        return job.status, "Stopping"
    since = next(
        (
            condition.last_transition_time
            for condition in job.status.conditions
            if condition.type is ConditionType.SUSPENDED
        ),
        found.job.metadata.creation_timestamp,
    )
    condition = JobCondition(
        type=ConditionType.FAILED,
        status="True",
        reason=f"{job.kind}Stopped",
        message=f"{job.name} was stopped: {why_stopped}.",
        last_update_time=since,
        last_transition_time=since,
    )
    conditions = (*job.status.conditions, condition)
    status = msgspec.structs.replace(job.status, conditions=conditions, completion_time=since)
    return status, "Stopped"


def _latest_condition(status: JobStatus, pods: Sequence[PodObject]) -> str:
    if status.is_finishing:
        return "Finishing"
    true = [condition.type for condition in status.conditions if condition.status == "True"]
    for final in (ConditionType.FAILED, ConditionType.SUCCEEDED):
        if final in true:
            return str(final)
    if true:
        return str(true[-1])
    # Kubeflow Trainer has no condition for that.
    is_running = any(pod.status.phase == "Running" for pod in pods)
    return str(ConditionType.RUNNING) if is_running else "Pending"


def _earliest_failure(replicas: Sequence[ReplicaView]) -> FirstFailure | None:
    """Return the replica that failed first, if the operator does not record it."""
    failed = [view for view in replicas if view.state == "Failed" and view.finished is not None]
    if not failed:
        return None
    first = min(failed, key=lambda view: str(view.finished))
    return FirstFailure(first.id, first.attempt, first.exit_code, first.reason, time=first.finished)


def _decode_progress(report: ReportObject | None) -> TrainingProgress | None:
    text = report.data.get("progress", "") if report else ""
    try:
        return decode_json(text, TrainingProgress) if text else None
    except msgspec.MsgspecError:
        return None


def _not_picked_up(found: ClusterJob, pods: Sequence[PodObject], now: datetime) -> bool:
    """Return whether no operator has touched the job, although there was time enough."""
    created, status = found.job.metadata.creation_timestamp, found.job.status
    untouched = not (pods or status.get("conditions") or status.get("jobsStatus"))
    return untouched and created is not None and now - created > _PICKUP_TIMEOUT


def _job_warnings(
    job: Job, found: ClusterJob, pods: Sequence[PodObject], now: datetime
) -> Iterator[str]:
    if job.total_replicas > MAX_REPLICAS:
        yield f"only the first {MAX_REPLICAS} of {job.total_replicas} replicas are shown"
    if job.run_policy.managed_by not in ("", found.framework.manager):
        yield f"the job is left to another controller (managedBy: {job.run_policy.managed_by})"
    elif _not_picked_up(found, pods, now):
        yield (
            f"no operator has picked up the job: is one for {job.kind} installed?"
            " See `danlu operator manifests`"
        )


def _scheduling_warnings(replicas: Sequence[ReplicaView]) -> list[str]:
    """Return what the scheduler says about pods that fit on no node, once each."""
    reasons = {view.waits for view in replicas if view.waits.startswith(UNSCHEDULABLE)}
    return [
        f"{reason} (request less, make room on a node, or limit the wait with --deadline)"
        for reason in sorted(reasons)
    ]


# -- its pods -------------------------------------------------------------------------------------


def own_report(report: ReportObject | None, uid: str) -> ReportObject | None:
    """Return the report if the job with this UID owns it, and not an earlier one of its name."""
    owners = report.metadata.owner_references if report is not None else ()
    return report if any(owner.uid == uid for owner in owners) else None


def _may_run(pod: PodObject) -> bool:
    return pod.status.phase not in ("Succeeded", "Failed")


def attempt_number(record: ReplicaRecord, uid: str) -> int:
    """Return which attempt a pod is, according to the operator's record of its replica."""
    is_earlier = uid == record.last or uid in record.past
    if is_earlier and uid != record.current:
        return max(0, record.attempts - 1)
    return record.attempts


def _replica_views(
    job: Job, pods: Mapping[ReplicaId, PodObject], framework: Framework
) -> Iterator[tuple[ReplicaView, PodObject | None]]:
    for id in islice(replica_ids(job, framework), MAX_REPLICAS):
        pod, record = pods.get(id), job.status.record(id)
        if pod is None:
            yield _replica_without_pod(job, framework, id, record), None
        else:
            yield _replica_from_pod(job, framework, pod, id, record), pod


def _explain_waiting(
    view: ReplicaView, pod: PodObject | None, job: Job, reasons: WaitingReasons
) -> ReplicaView:
    """Add the queue of a suspended job, or the event about a pod not created or not starting.

    The job's own events are about pods that could not be created (``FailedCreatePod``). Other
    waiting reasons already contain the kubelet's or the scheduler's message.
    """
    if view.waits == WAITING_FOR_RESUMPTION and reasons.admission:
        return msgspec.structs.replace(view, waits=reasons.admission)
    warning = reasons.events.get(job.uid if pod is None else pod.metadata.uid, "")
    if not warning:
        return view
    if view.waits == WAITING_FOR_POD:
        return msgspec.structs.replace(view, waits=f"{WAITING_FOR_POD}: {warning}")
    if view.waits in STARTING:
        reason = view.waits.partition(":")[0]
        return msgspec.structs.replace(view, waits=f"{reason}: {warning}")
    return view


def _replica_without_pod(
    job: Job, framework: Framework, id: ReplicaId, record: ReplicaRecord
) -> ReplicaView:
    """Return the view of a replica whose pod was cleaned up or is not created yet."""
    waits = ""
    state: ReplicaStateName = "Pending"
    if record.completed or record.failed:
        state = "Succeeded" if record.completed else "Failed"
    elif job.annotations.get(STOPPED_ANNOTATION) or job.status.finished:
        state = "Stopped"
    elif job.run_policy.suspend:
        state, waits = "Waiting", WAITING_FOR_RESUMPTION
    elif record.retry_at:
        state, waits = "Waiting", "its next attempt"
    elif stages := describe_dependencies(job, framework, id.type):
        state, waits = "Waiting", stages
    else:
        waits = WAITING_FOR_POD
    return ReplicaView(
        id,
        state,
        attempt=record.attempts,
        restarts=job.status.restart_count(id),
        exit_code=record.exit_code if record.completed or record.failed else None,
        reason=record.reason if record.failed else "",
        waits=waits,
    )


def _replica_from_pod(
    job: Job, framework: Framework, pod: PodObject, id: ReplicaId, record: ReplicaRecord
) -> ReplicaView:
    main = main_container_status(pod, framework.container)
    terminated = main.state.terminated if main else None
    state = _PHASE_STATES.get(pod.status.phase, "Pending")
    if state == "Failed" and pod.metadata.deletion_timestamp is not None:
        state = "Stopped"
    waits = waiting_reason(pod)
    restarts = main.restart_count if main else 0
    return ReplicaView(
        id=id,
        state="Pending" if waits and state == "Running" else state,
        attempt=attempt_number(record, pod.metadata.uid),
        restarts=job.status.restarts + max(record.restarts, restarts),
        exit_code=terminated.exit_code if terminated else None,
        reason=_failure_reason(pod, terminated) if state == "Failed" else "",
        host=pod.metadata.name,
        waits=waits,
        started=pod.status.start_time,
        finished=terminated.finished_at if terminated else None,
    )


def main_container_status(pod: PodObject, container: str) -> ContainerStatus | None:
    """Return the status of the container with that name, or else the first; None if unknown."""
    statuses = pod.status.container_statuses
    named = [status for status in statuses if status.name == container]
    return next(iter((*named, *statuses)), None)


def _failure_reason(pod: PodObject, terminated: ContainerStateTerminated | None) -> str:
    return pod.status.reason or (terminated.reason if terminated else "")


def replica_command(pod: PodObject, framework: Framework) -> ReplicaCommand:
    """Return the command of a pod's main container, without the prefix that copies the code.

    Variables whose values only the node knows (``valueFrom``) are left out.
    """
    spec: dict[str, Any] = msgspec.json.decode(pod.spec)
    main = find_main_container({"spec": spec}, framework.container)
    words = (*(main.get("command") or ()), *(main.get("args") or ()))
    if words[: len(COPY_CODE_COMMAND)] == COPY_CODE_COMMAND:
        words = words[len(COPY_CODE_COMMAND) :]
    environment: dict[str, str] = {}
    for entry in main.get("env") or ():
        if not entry.get("valueFrom"):
            value = str(entry.get("value") or "")
            environment[entry["name"]] = expand_references(value, environment.get)
    return ReplicaCommand(
        args=tuple(expand_references(word, environment.get) for word in words),
        environment=environment,
        directory=main.get("workingDir") or "",
        image=main.get("image") or "",
    )
