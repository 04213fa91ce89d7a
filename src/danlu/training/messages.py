"""Messages of conditions and events, verbatim those of Kubeflow's operator.

People search their logs for them, and the operator (1.9; 1.7 for MXJob) words them slightly
differently for each kind. Sources: ``UpdateJobStatus`` of each controller,
``pkg/controller.v1/common``.
"""

from __future__ import annotations

from collections.abc import Sequence

from danlu.training.types import Job, ReplicaId, ReplicaType, RestartPolicy

QUALIFIED = ("PyTorchJob", "PaddleJob", "JAXJob")
"""Kinds whose messages include the namespace if a worker decides instead of a master."""

MAX_LISTED_REPLICAS = 5


def event_reason(job: Job, word: str) -> str:
    """Return the reason of a condition or event: the kind followed by ``Created``, ``Running`` …"""
    return f"{job.kind}{word}"


def created_message(job: Job) -> str:
    """Return the message of a new job's first condition."""
    return f"{job.kind} {job.name} is created."


def running_message(job: Job, type: ReplicaType) -> str:
    """Report that a replica of the deciding type is running."""
    return f"{job.kind} {_qualified_name(job, type)} is running."


def succeeded_message(job: Job, type: ReplicaType) -> str:
    """Report that the job succeeded."""
    name = _qualified_name(job, type)
    completed = "successfully" if "/" in name else "is successfully"
    return f"{job.kind} {name} {completed} completed."


def restarting_message(job: Job, type: ReplicaType, count: int) -> str:
    """Report how many replicas of a type are restarted."""
    if job.kind == "TFJob":
        return f"job {job.name} is restarting because {type} replica(s) failed."
    return (
        f"{_message_kind(job)} {job.name} is restarting because {count} {type} replica(s) failed."
    )


def failed_message(job: Job, type: ReplicaType, count: int) -> str:
    """Report that the job failed, and how many replicas of a type failed permanently."""
    if _fails_by_exit_code(job, type):
        return f'job "{job.name}" is failing because "{type}" replica(s) failed.'
    if job.kind == "TFJob":
        name = f"{job.namespace}/{job.name}"
        return f"TFJob {name} has failed because {count} {type} replica(s) failed."
    return f"{_message_kind(job)} {job.name} is failed because {count} {type} replica(s) failed."


def evicted_message(count: int, total: int) -> str:
    """Report that an MPIJob failed because workers were evicted."""
    return f"{count}/{total} workers are evicted"


def backoff_limit_message(job: Job) -> str:
    """Report that the back-off limit is exceeded."""
    return f"Job {job.name} has failed because it has reached the specified backoff limit"


def deadline_message(job: Job, unfinished: Sequence[ReplicaId]) -> str:
    """Report that the active deadline has passed, and what had not finished."""
    message = f"Job {job.name} has failed because it was active longer than specified deadline"
    return f"{message}; not finished: {name_some(unfinished)}" if unfinished else message


def suspended_message(job: Job) -> str:
    """Report that the job is suspended."""
    return f"{job.kind} {job.name} is suspended."


def resumed_message(job: Job) -> str:
    """Report that the job is resumed."""
    return f"{job.kind} {job.name} is resumed."


def exited_message(job: Job, replica: str, code: int) -> str:
    """Report that a replica (``worker-0``) ended."""
    return f"Pod: {job.namespace}.{job.name}-{replica} exited with code {code}"


def name_some(replicas: Sequence[ReplicaId]) -> str:
    """Return ``worker-0, worker-1``; of many only the first few, and how many more there are."""
    names = ", ".join(map(str, replicas[:MAX_LISTED_REPLICAS]))
    more = len(replicas) - MAX_LISTED_REPLICAS
    return f"{names} and {more} more" if more > 0 else names


def _qualified_name(job: Job, type: ReplicaType) -> str:
    worker = job.kind in QUALIFIED and type == "Worker"
    return f"{job.namespace}/{job.name}" if worker or job.kind == "TFJob" else job.name


def _message_kind(job: Job) -> str:
    return "mxjob" if job.kind == "MXJob" else job.kind


def _fails_by_exit_code(job: Job, type: ReplicaType) -> bool:
    """Return whether the message comes from the part of the operator that all kinds share."""
    spec = job.replicas.get(type)
    policy = spec.restart_policy if spec is not None else RestartPolicy.NEVER
    return policy is RestartPolicy.EXIT_CODE and job.kind != "MPIJob"
