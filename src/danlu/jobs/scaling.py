"""List the replicas of a job, and change their number within its limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from danlu.errors import UsageError
from danlu.training.replicas import desired_replicas
from danlu.training.types import Job, ReplicaId, ReplicaType


def replica_ids(job: Job) -> Iterator[ReplicaId]:
    """Yield all replicas that a job should have, in order."""
    for type in job.replicas:
        yield from (ReplicaId(type, index) for index in range(desired_replicas(job, type)))


def with_replicas(job: Job, numbers: Mapping[str, int]) -> Job:
    """Return the job with other numbers of replicas, by type (case-insensitive).

    Raises :class:`UsageError` for an unknown type, and for a number outside the job's limits.
    """
    types = {str(type).lower(): type for type in job.replicas}
    replicas = dict(job.replicas)
    for name, number in numbers.items():
        type = types.get(name.lower())
        if type is None:
            raise UsageError(
                f"job {job.name} has no replicas of type {name}",
                hint=f"valid types: {', '.join(job.replicas)}",
            )
        _check_replica_count(job, type, number)
        replicas[type] = msgspec.structs.replace(replicas[type], replicas=number)
    return msgspec.structs.replace(job, replicas=replicas)


def _check_replica_count(job: Job, type: ReplicaType, number: int) -> None:
    elastic = job.elastic_policy if type == "Worker" else None
    minimum = (elastic.min_replicas if elastic else None) or 0
    maximum = elastic.max_replicas if elastic else None
    if number < minimum or (maximum is not None and number > maximum):
        limits = f"from {minimum} to {maximum}" if maximum is not None else f"at least {minimum}"
        raise UsageError(f"{job.name} can have {limits} replicas of type {type}, not {number}")
