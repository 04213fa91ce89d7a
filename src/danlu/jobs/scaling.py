"""Other numbers of replicas, by the rules of the job they are for."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from danlu.errors import UsageError
from danlu.training.types import Job, ReplicaType

__all__ = ["scaled"]


def scaled(job: Job, numbers: Mapping[str, int]) -> Job:
    """The job with other numbers; raises :class:`UsageError` for those it cannot have."""
    names = {str(type).lower(): type for type in job.replicas}
    replicas = dict(job.replicas)
    for name, number in numbers.items():
        type = names.get(name.lower())
        if type is None:
            known = ", ".join(job.replicas)
            raise UsageError(f"{job.name} has no replicas of type {name}", hint=f"it has {known}")
        _check_number(job, type, number)
        replicas[type] = msgspec.structs.replace(replicas[type], replicas=number)
    return msgspec.structs.replace(job, replicas=replicas)


def _check_number(job: Job, type: ReplicaType, number: int) -> None:
    elastic = job.elastic_policy if type == "Worker" else None
    least = (elastic.min_replicas if elastic else None) or 0
    most = elastic.max_replicas if elastic else None
    if number < least or (most is not None and number > most):
        limits = f"from {least} to {most}" if most is not None else f"{least} or more"
        raise UsageError(f"{job.name} can have {limits} replicas of type {type}, not {number}")
