"""The words of conditions and events, letter by letter those of Kubeflow's operator.

Release 1.9 (1.7 for MXJob), which writes them a little differently for each kind; people search
their logs for them. Sources: ``UpdateJobStatus`` of each controller, ``pkg/controller.v1/common``.
"""

from __future__ import annotations

from danlu.training.types import Job, ReplicaType, RestartPolicy

__all__ = [
    "active_too_long",
    "created",
    "evicted",
    "exited",
    "failed",
    "reason",
    "restarted_too_often",
    "restarting",
    "resumed",
    "running",
    "succeeded",
    "suspended",
]

QUALIFIED = ("PyTorchJob", "PaddleJob", "JAXJob")
"""Kinds that name the namespace too where no master decides, but a worker."""


def reason(job: Job, word: str) -> str:
    """The reason of a condition or event: the kind and ``Created``, ``Running`` …"""
    return f"{job.kind}{word}"


def created(job: Job) -> str:
    """Of the first condition of every job."""
    return f"{job.kind} {job.name} is created."


def running(job: Job, blamed: ReplicaType) -> str:
    """That a replica which decides runs."""
    return f"{job.kind} {_name(job, blamed)} is running."


def succeeded(job: Job, blamed: ReplicaType) -> str:
    """That the job succeeded."""
    name = _name(job, blamed)
    completed = "successfully" if "/" in name else "is successfully"
    return f"{job.kind} {name} {completed} completed."


def restarting(job: Job, blamed: ReplicaType, count: int) -> str:
    """That so many replicas of a type are made again."""
    if job.kind == "TFJob":
        return f"job {job.name} is restarting because {blamed} replica(s) failed."
    return f"{_kind(job)} {job.name} is restarting because {count} {blamed} replica(s) failed."


def failed(job: Job, blamed: ReplicaType, count: int) -> str:
    """That the job failed, for so many replicas of a type that ended badly for good."""
    if _by_exit_code(job, blamed):
        return f'job "{job.name}" is failing because "{blamed}" replica(s) failed.'
    if job.kind == "TFJob":
        name = f"{job.namespace}/{job.name}"
        return f"TFJob {name} has failed because {count} {blamed} replica(s) failed."
    return f"{_kind(job)} {job.name} is failed because {count} {blamed} replica(s) failed."


def evicted(count: int, total: int) -> str:
    """That an MPIJob failed because workers were evicted."""
    return f"{count}/{total} workers are evicted"


def restarted_too_often(job: Job) -> str:
    """That the back-off limit is used up."""
    return f"Job {job.name} has failed because it has reached the specified backoff limit"


def active_too_long(job: Job) -> str:
    """That the active deadline is over."""
    return f"Job {job.name} has failed because it was active longer than specified deadline"


def suspended(job: Job) -> str:
    """That the job is suspended."""
    return f"{job.kind} {job.name} is suspended."


def resumed(job: Job) -> str:
    """That the job is not suspended any more."""
    return f"{job.kind} {job.name} is resumed."


def exited(job: Job, replica: str, code: int) -> str:
    """That a replica (``worker-0``) ended."""
    return f"Pod: {job.namespace}.{job.name}-{replica} exited with code {code}"


def _name(job: Job, blamed: ReplicaType) -> str:
    worker = job.kind in QUALIFIED and blamed == "Worker"
    return f"{job.namespace}/{job.name}" if worker or job.kind == "TFJob" else job.name


def _kind(job: Job) -> str:
    return "mxjob" if job.kind == "MXJob" else job.kind


def _by_exit_code(job: Job, blamed: ReplicaType) -> bool:
    """Whether the common part of Kubeflow's operator says it, before the kind's own can."""
    spec = job.replicas.get(blamed)
    policy = spec.restart_policy if spec is not None else RestartPolicy.NEVER
    return policy is RestartPolicy.EXIT_CODE and job.kind != "MPIJob"
