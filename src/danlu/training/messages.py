"""Messages of conditions and events, verbatim those of Kubeflow's operator.

People search their logs for them, and the operator (1.9; 1.7 for MXJob) words some of them
differently for each kind: these are the framework's. Sources: ``UpdateJobStatus`` of each
controller, ``pkg/controller.v1/common``.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from danlu.training.framework import Framework, Messages
from danlu.training.types import Job, JobRestartPolicy, ReplicaId, ReplicaType

MAX_LISTED_REPLICAS = 5


def event_reason(job: Job, word: str) -> str:
    """Return the reason of a condition or event: the kind followed by ``Created``, ``Running`` …"""
    return f"{job.kind}{word}"


def created_message(job: Job) -> str:
    """Return the message of a new job's first condition."""
    return f"{job.kind} {job.name} is created."


def fill_messages(job: Job, framework: Framework, type: ReplicaType, **numbers: int) -> Messages:
    """Return the framework's messages about a job that ``type`` decides; ``numbers`` are 0 else."""
    names = {"kind": job.kind, "name": job.name, "namespace": job.namespace, "type": type}
    numbers = {"count": 0, "evicted": 0, "expected": 0, **numbers}
    templates = msgspec.structs.astuple(framework.messages.get(type, Messages()))
    return Messages(*(template.format(**names, **numbers) for template in templates))


def job_restart_message(policy: JobRestartPolicy, restarts: int) -> str:
    """Report that the whole job is restarted, for the ``restarts``-th time."""
    limit = "" if policy.max_restarts is None else f" of {policy.max_restarts}"
    return f"All replicas are recreated: restart {restarts}{limit} of the job."


def backoff_limit_message(job: Job) -> str:
    """Report that the back-off limit is exceeded, or the maximum of the job's restart policy."""
    if (policy := job.job_restart_policy) is None:
        return f"Job {job.name} has failed because it has reached the specified backoff limit"
    limit = f"max number of restarts ({policy.max_restarts})"
    return f"Job {job.name} has failed because it has reached its {limit}"


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
