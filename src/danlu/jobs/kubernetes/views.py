"""How a job of a cluster stands, as a value to show: of its object, its pods and what they told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from danlu.jobs.kubernetes.objects import (
    ContainerStatus,
    JobObject,
    PodObject,
    ReportObject,
    Terminated,
)
from danlu.jobs.kubernetes.waits import STARTING, why
from danlu.jobs.types import JobView, Progress, ReplicaView
from danlu.training.cluster import STOPPED, SUBMITTED_LABELS
from danlu.training.document import ManifestError
from danlu.training.framework import Framework
from danlu.training.manifest import read_job, read_status
from danlu.training.standing import wanted
from danlu.training.types import (
    Condition,
    ConditionType,
    Job,
    JobStatus,
    ReplicaId,
    ReplicaRecord,
    ReplicaType,
)

__all__ = [
    "alive",
    "attempt_of",
    "job_of",
    "labels_of",
    "main_status",
    "newest",
    "own_pods",
    "own_report",
    "replica_of",
    "view_of",
]

State = Literal["Waiting", "Pending", "Running", "Succeeded", "Failed", "Stopped"]

_PREFIX = "training.kubeflow.org"
_STATES: Mapping[str, State] = {
    "": "Pending",
    "Pending": "Pending",
    "Running": "Running",
    "Succeeded": "Succeeded",
    "Failed": "Failed",
    "Unknown": "Running",
}

UNMADE = "its pod to be made"

#: After so long somebody should have taken a job up.
_NOTICED = timedelta(seconds=15)


# -- the job --------------------------------------------------------------------------------------


def job_of(found: JobObject, framework: Framework) -> Job:
    """The job that an object asks for; one without replicas where it is no valid manifest."""
    metadata: Mapping[str, Any] = msgspec.to_builtins(found.metadata)
    document = {"apiVersion": "kubeflow.org/v1", "kind": framework.kind, "metadata": metadata}
    try:
        return read_job({**document, "spec": found.spec, "status": found.status}, framework)
    except ManifestError:
        status = read_status(found.status)
        meta = found.metadata
        return Job(framework.kind, meta.name, {}, meta.namespace, meta.uid, status=status)


def view_of(
    found: JobObject,
    framework: Framework,
    *,
    pods: Sequence[PodObject],
    report: ReportObject | None,
    where: str,
    now: datetime,
    warned: Mapping[str, str] | None = None,
) -> JobView:
    """The view of a job; ``pods`` are its own, ``where`` is the place's name.

    ``warned`` is what events say of it and its pods, by uid.
    """
    job = job_of(found, framework)
    status, state = _standing(job, found, pods, now)
    return JobView(
        name=job.name,
        kind=job.kind,
        framework=framework.name,
        state=state,
        status=status,
        replicas=tuple(
            _explained(one, seen, job, warned or {})
            for one, seen in _replicas(job, newest(pods, framework.types), framework.container)
        ),
        progress=_progress(report),
        warnings=tuple(_warnings(found, framework, now)),
        created=found.metadata.creation_timestamp,
        where=where,
        labels=labels_of(found),
    )


def labels_of(found: JobObject) -> dict[str, str]:
    """The labels of the submission; none of a job that somebody else submitted."""
    text = found.metadata.annotations.get(SUBMITTED_LABELS, "{}")
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        return {}


def _standing(
    job: Job, found: JobObject, pods: Sequence[PodObject], now: datetime
) -> tuple[JobStatus, str]:
    """The status, and the state in a word; a job that was stopped has failed by that."""
    why_stopped = job.annotations.get(STOPPED)
    if job.status.finished or not why_stopped:
        return job.status, _last_word(job.status)
    # What nobody runs has nothing that could still end.
    if any(map(alive, pods)) or not (
        job.status.has(ConditionType.SUSPENDED) or _unheeded(found, now)
    ):
        return job.status, "Stopping"
    since = next(
        (
            one.last_transition_time
            for one in job.status.conditions
            if one.type is ConditionType.SUSPENDED
        ),
        found.metadata.creation_timestamp,
    )
    condition = Condition(
        type=ConditionType.FAILED,
        status="True",
        reason=f"{job.kind}Stopped",
        message=f"{job.name} was stopped: {why_stopped}.",
        last_update_time=since,
        last_transition_time=since,
    )
    conditions = (*job.status.conditions, condition)
    ended = msgspec.structs.replace(job.status, conditions=conditions, completion_time=since)
    return ended, "Stopped"


def _last_word(status: JobStatus) -> str:
    true = [one.type for one in status.conditions if one.status == "True"]
    for end in (ConditionType.FAILED, ConditionType.SUCCEEDED):
        if end in true:
            return str(end)
    return str(true[-1]) if true else "Pending"


def _members(job: Job) -> Iterator[ReplicaId]:
    for type in job.replicas:
        yield from (ReplicaId(type, index) for index in range(wanted(job, type)))


def _progress(report: ReportObject | None) -> Progress | None:
    text = report.data.get("progress", "") if report else ""
    try:
        return msgspec.json.decode(text, type=Progress) if text else None
    except msgspec.MsgspecError:
        return None


def _unheeded(found: JobObject, now: datetime) -> bool:
    """Whether an operator should have taken the job up by now, and none did."""
    created = found.metadata.creation_timestamp
    unseen = not read_status(found.status).conditions
    return unseen and created is not None and now - created > _NOTICED


def _warnings(found: JobObject, framework: Framework, now: datetime) -> Iterator[str]:
    if _unheeded(found, now):
        yield (
            f"no operator has taken it up: is one installed that runs {framework.kind}s?"
            " `danlu operator manifests` gives it"
        )


# -- its pods -------------------------------------------------------------------------------------


def own_pods(pods: Sequence[PodObject], uid: str) -> list[PodObject]:
    """Those that belong to the job with this uid, the oldest first."""
    found = [one for one in pods if (one.metadata.controller or _NOBODY).uid == uid]
    return sorted(found, key=lambda one: str(one.metadata.creation_timestamp))


def own_report(report: ReportObject | None, uid: str) -> ReportObject | None:
    """The report where it is of the job with this uid: an earlier one may have had its name."""
    owners = report.metadata.owner_references if report is not None else ()
    return report if any(one.uid == uid for one in owners) else None


class _Nobody:
    uid = ""


_NOBODY = _Nobody()


def replica_of(pod: PodObject, types: Sequence[ReplicaType]) -> ReplicaId | None:
    """Which replica a pod is; None for one without the labels."""
    labels = pod.metadata.labels
    type, index = labels.get(f"{_PREFIX}/replica-type"), labels.get(f"{_PREFIX}/replica-index", "")
    found = next((one for one in types if one.lower() == type), None)
    return ReplicaId(found, int(index)) if found is not None and index.isdigit() else None


def alive(pod: PodObject) -> bool:
    """Whether anything of it may still run."""
    return pod.status.phase not in ("Succeeded", "Failed")


def attempt_of(record: ReplicaRecord, uid: str) -> int:
    """The number of the attempt that a pod is, by what the operator remembers of its replica."""
    before = uid == record.last or uid in record.past
    return max(0, record.attempts - 1) if before and uid != record.current else record.attempts


def newest(pods: Sequence[PodObject], types: Sequence[ReplicaType]) -> dict[ReplicaId, PodObject]:
    """The last pod of each replica; ``pods`` are in the order in which they were made."""
    found = ((replica_of(one, types), one) for one in pods)
    return {replica: one for replica, one in found if replica is not None}


def _replicas(
    job: Job, pods: Mapping[ReplicaId, PodObject], container: str
) -> Iterator[tuple[ReplicaView, PodObject | None]]:
    for id in _members(job):
        pod, record = pods.get(id), job.status.record(id)
        if pod is None:
            yield _unseen(job, id, record), None
        else:
            yield _seen(pod, id, record, container=container), pod


def _explained(
    view: ReplicaView, pod: PodObject | None, job: Job, warned: Mapping[str, str]
) -> ReplicaView:
    """With what was said of the pod that is not there, or does not begin to run."""
    text = warned.get(job.uid if pod is None else pod.metadata.uid, "")
    # Who says in full for what it waits needs no other's words.
    if not text or view.waits not in (UNMADE, STARTING):
        return view
    return msgspec.structs.replace(view, waits=f"{view.waits}: {text}")


def _unseen(job: Job, id: ReplicaId, record: ReplicaRecord) -> ReplicaView:
    """A replica of which no pod is there: it ended and was cleaned up, or is still to come."""
    waits = ""
    state: State = "Pending"
    if record.completed or record.failed:
        state = "Succeeded" if record.completed else "Failed"
    elif job.annotations.get(STOPPED) or job.status.finished:
        state = "Stopped"
    elif job.run_policy.suspend:
        state, waits = "Waiting", "the job to be resumed"
    elif record.retry_at:
        state, waits = "Waiting", "its next attempt"
    else:
        waits = UNMADE
    return ReplicaView(
        id,
        state,
        attempt=record.attempts,
        restarts=record.restarts,
        exit_code=record.exit_code if record.completed or record.failed else None,
        reason=record.reason if record.failed else "",
        waits=waits,
    )


def _seen(pod: PodObject, id: ReplicaId, record: ReplicaRecord, *, container: str) -> ReplicaView:
    main = main_status(pod, container)
    ended = main.state.terminated if main else None
    state = _STATES.get(pod.status.phase, "Pending")
    if state == "Failed" and pod.metadata.deletion_timestamp is not None:
        state = "Stopped"
    waits = why(pod)
    restarts = main.restart_count if main else 0
    return ReplicaView(
        id=id,
        state="Pending" if waits and state == "Running" else state,
        attempt=attempt_of(record, pod.metadata.uid),
        restarts=max(record.restarts, restarts),
        exit_code=ended.exit_code if ended else None,
        reason=_reason(pod, ended) if state == "Failed" else "",
        host=pod.metadata.name,
        waits=waits,
        started=pod.status.start_time,
        finished=ended.finished_at if ended else None,
    )


def main_status(pod: PodObject, container: str) -> ContainerStatus | None:
    """How the container of that name stands, else the first; None before anything is known."""
    statuses = pod.status.container_statuses
    named = [one for one in statuses if one.name == container]
    return next(iter((*named, *statuses)), None)


def _reason(pod: PodObject, ended: Terminated | None) -> str:
    return pod.status.reason or (ended.reason if ended else "")
