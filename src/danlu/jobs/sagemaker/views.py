"""Build the view of a training job from its description; pure.

Descriptions are untrusted: programs write the reason of a failure, and everyone in the account may
create jobs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from danlu.jobs.sagemaker.request import JOB_VARIABLE, LABELS_VARIABLE
from danlu.jobs.types import JobView, ReplicaStateName, ReplicaView
from danlu.training.types import (
    ConditionType,
    FirstFailure,
    JobCondition,
    JobStatus,
    ReplicaId,
    ReplicaType,
)
from danlu.util.decoding import decode_json
from danlu.util.sanitize import strip_control_sequences

MAX_REPLICAS = 10_000
"""A view has no more: anybody who may create jobs chooses the number."""

_REPLICAS = re.compile(r"(?P<framework>[a-z]+) (?P<counts>\w+=\d+(?:,\w+=\d+)*)")
#: What :mod:`danlu.replica_runtime.sagemaker` writes to ``output/failure``.
_FAILURE = re.compile(r"(?:AlgorithmError: )?rank \d+ of \d+ \((?P<host>algo-\d+)\): ")
_EXIT_CODE = re.compile(r"exit code:? (\d{1,3})\b")
_REASON = re.compile(r"([A-Z][A-Za-z]*(?:Error|Exceeded)): ")
_MAX_MESSAGE = 400
_RUNNING = ("Training", "Uploading", "Stopping", "Updating")
_UNTIL_MAX_RUNTIME = ("MaxRuntimeExceeded", "MaxWaitTimeExceeded")
_CAPACITY_HINT = "request another instance type or region, or try again later"


def build_view(job: Mapping[str, Any], *, where: str) -> JobView:
    """Return the view of a job, as ``DescribeTrainingJob`` describes it."""
    status, secondary = str(job.get("TrainingJobStatus")), str(job.get("SecondaryStatus"))
    framework, replicas = read_replicas(job)
    ended = job.get("TrainingEndTime") or job.get("LastModifiedTime")
    failure = None
    if status == "Failed":
        failure = _find_first_failure(job, list(replicas.values()), list(replicas), ended)
    conditions = tuple(_list_conditions(job, status, secondary, ended))
    state = str(conditions[-1].type) if conditions else "Pending"
    if status in ("Stopped", "Stopping") and secondary not in _UNTIL_MAX_RUNTIME:
        state = status
    elif status == "InProgress":
        state = "Running" if secondary in _RUNNING else "Pending"
    return JobView(
        name=str(job["TrainingJobName"]),
        kind="TrainingJob",
        framework=framework,
        state=state,
        status=JobStatus(
            conditions=conditions,
            start_time=job.get("TrainingStartTime"),
            completion_time=ended if status in ("Completed", "Failed", "Stopped") else None,
            first_failure=failure,
            restarts=_count_restarts(job),
        ),
        replicas=tuple(
            _build_replica(job, replica, host, status, secondary, failure, ended)
            for host, replica in replicas.items()
        ),
        created=job.get("CreationTime"),
        where=where,
        labels=_read_labels(job),
    )


def _read_labels(job: Mapping[str, Any]) -> Mapping[str, str]:
    text = str((job.get("Environment") or {}).get(LABELS_VARIABLE) or "{}")
    try:
        return decode_json(text, dict[str, str])
    except msgspec.MsgspecError:
        return {}


def read_replicas(job: Mapping[str, Any]) -> tuple[str, Mapping[str, ReplicaId]]:
    """Return the framework of a job, and its replicas by their hosts."""
    number = min(int((job.get("ResourceConfig") or {}).get("InstanceCount") or 1), MAX_REPLICAS)
    found = _REPLICAS.fullmatch(str((job.get("Environment") or {}).get(JOB_VARIABLE, "")))
    framework, ids = "", list[ReplicaId]()
    if found is not None:
        framework = found["framework"]
        for text in found["counts"].split(","):
            type, _, count = text.partition("=")
            ids += [ReplicaId(ReplicaType(type), index) for index in range(min(int(count), number))]
    if len(ids) != number:
        ids = [ReplicaId(ReplicaType("Worker"), index) for index in range(number)]
    return framework, {f"algo-{position}": id for position, id in enumerate(ids, 1)}


def describe_failure(job: Mapping[str, Any]) -> str:
    """Return why a job failed in one line, with what to do if that is known."""
    text = clean_text(str(job.get("FailureReason") or "no reason was given"))
    return f"{text} ({_CAPACITY_HINT})" if text.startswith("CapacityError") else text


def clean_text(text: str) -> str:
    """Return text of others in one line, without control sequences."""
    lines = (strip_control_sequences(line).strip() for line in text.splitlines())
    return " ".join(filter(None, lines))[:_MAX_MESSAGE]


def _list_conditions(
    job: Mapping[str, Any], status: str, secondary: str, ended: datetime | None
) -> Sequence[JobCondition]:
    found = [_make_condition(ConditionType.CREATED, "TrainingJobCreated", "", job["CreationTime"])]
    if job.get("TrainingStartTime") is not None:
        start = job["TrainingStartTime"]
        found.append(_make_condition(ConditionType.RUNNING, secondary, _last_message(job), start))
    if status == "Completed":
        found.append(_make_condition(ConditionType.SUCCEEDED, "Completed", "", ended))
    elif status == "Failed":
        reason = _REASON.match(str(job.get("FailureReason") or ""))
        message = describe_failure(job)
        word = reason[1] if reason else "Failed"
        found.append(_make_condition(ConditionType.FAILED, word, message, ended))
    elif status == "Stopped" and secondary in _UNTIL_MAX_RUNTIME:
        limits = job.get("StoppingCondition") or {}
        seconds = limits.get(secondary.replace("Exceeded", "InSeconds"))
        message = f"{secondary}: it ran for more than {seconds} seconds"
        found.append(_make_condition(ConditionType.FAILED, "DeadlineExceeded", message, ended))
    elif status == "Stopped":
        message = f"{job['TrainingJobName']} was stopped"
        found.append(_make_condition(ConditionType.FAILED, "TrainingJobStopped", message, ended))
    return found


def _make_condition(
    type: ConditionType, reason: str, message: str, time: datetime | None
) -> JobCondition:
    return JobCondition(type, "True", reason, message, time, time)


def _last_message(job: Mapping[str, Any]) -> str:
    transitions = job.get("SecondaryStatusTransitions") or ()
    return clean_text(str(transitions[-1].get("StatusMessage") or "")) if transitions else ""


def _count_restarts(job: Mapping[str, Any]) -> int:
    transitions = job.get("SecondaryStatusTransitions") or ()
    return sum(transition.get("Status") == "Restarting" for transition in transitions)


def _build_replica(
    job: Mapping[str, Any],
    replica: ReplicaId,
    host: str,
    status: str,
    secondary: str,
    failure: FirstFailure | None,
    ended: datetime | None,
) -> ReplicaView:
    state: ReplicaStateName = "Pending"
    if status == "Completed":
        state = "Succeeded"
    elif status == "Failed":
        # SageMaker ends the other hosts when one has failed.
        state = "Failed" if failure is None or failure.replica == replica else "Stopped"
    elif status == "Stopped":
        state = "Stopped"
    elif secondary in _RUNNING:
        state = "Running"
    failed = failure is not None and failure.replica == replica
    finished = status in ("Completed", "Failed", "Stopped")
    waits = f"{secondary}: {_last_message(job)}".rstrip(": ") if state == "Pending" else ""
    return ReplicaView(
        replica,
        state,
        attempt=_count_restarts(job),
        restarts=_count_restarts(job),
        exit_code=0 if state == "Succeeded" else failure.exit_code if failed and failure else None,
        reason=failure.reason if failed and failure else "",
        host=host,
        waits=waits,
        started=job.get("TrainingStartTime"),
        finished=ended if finished else None,
    )


def _find_first_failure(
    job: Mapping[str, Any],
    replicas: Sequence[ReplicaId],
    hosts: Sequence[str],
    ended: datetime | None,
) -> FirstFailure | None:
    """Return the replica whose program failed; None if none is known, or it was the service."""
    text = str(job.get("FailureReason") or "")
    if not text.startswith(("AlgorithmError", "rank ")):
        return None
    found = _FAILURE.match(text)
    if found is not None and found["host"] in hosts:
        replica = replicas[hosts.index(found["host"])]
    elif len(replicas) == 1:
        replica = replicas[0]
    else:
        return None
    codes = _EXIT_CODE.findall(text)
    lines = text[found.end() if found else 0 :].splitlines()
    # The first line says which program ended, the second is its exception.
    message = clean_text(lines[1] if found and len(lines) > 1 else "")
    return FirstFailure(
        replica,
        attempt=_count_restarts(job),
        exit_code=int(codes[-1]) if codes else None,
        message=message,
        time=ended,
    )
