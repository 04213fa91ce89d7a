"""Stages: replica types that are created only after others run or have succeeded.

What a type waits for (``Framework.list_dependencies``) is by default JobSet's ``dependsOn``: an
initializer that must be ``Complete`` before the nodes start, workers that must be ``Ready`` before
the launcher does. Only creation waits. A replica that exists is not deleted if what it depended on
fails later, but its next attempt waits again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from danlu.training.framework import FieldError, Framework, ReplicaCounts
from danlu.training.replicas import desired_replicas
from danlu.training.types import Dependency, Job, ReplicaType

_NO_COUNTS = ReplicaCounts()


class StageCounts(Protocol):
    """How many replicas of one type run and have ended."""

    @property
    def active(self) -> int:
        """Those that run."""

    @property
    def succeeded(self) -> int:
        """Those that have succeeded."""

    @property
    def failed(self) -> int:
        """Those that have failed and do not start again."""


def unmet_dependencies(
    job: Job, framework: Framework, type: ReplicaType, counts: Mapping[ReplicaType, StageCounts]
) -> tuple[Dependency, ...]:
    """Return what the replicas of a type still wait for; ``counts`` may lack types without any.

    Replicas that have ended are not waited for to be ready: they do not start again.
    """

    def is_met(dependency: Dependency) -> bool:
        expected = desired_replicas(job, dependency.type, framework)
        count = counts.get(dependency.type, _NO_COUNTS)
        ready = 0 if dependency.status == "Complete" else count.active + count.failed
        return count.succeeded + ready >= expected

    return tuple(
        dependency
        for dependency in framework.list_dependencies(job, type)
        if not is_met(dependency)
    )


def describe_dependencies(job: Job, framework: Framework, type: ReplicaType) -> str:
    """Return what the replicas of a type still wait for, by the job's status; empty for nothing."""
    unmet = unmet_dependencies(job, framework, type, job.status.replica_statuses)
    return " and ".join(f"{dependency.type} to be {dependency.status}" for dependency in unmet)


def find_failed_stage(job: Job, counts: Mapping[ReplicaType, ReplicaCounts]) -> ReplicaType | None:
    """Return a type that cannot succeed any more although others wait for it, None if none is."""
    failed = (type for type, count in counts.items() if count.failed and job.is_stage(type))
    return next(failed, None)


def check_dependencies(job: Job, *, field: str) -> Iterator[FieldError]:
    """Yield an error for each dependency on a type that the job lacks, or that waits in turn."""
    for type, spec in job.replicas.items():
        path = f"spec.{field}[{type}].dependsOn"
        for dependency in spec.depends_on:
            if dependency.type not in job.replicas:
                hint = f"one of {', '.join(other for other in job.replicas if other != type)}"
                yield FieldError(path, f"replica type {dependency.type} not found", hint)
            elif type in _list_all_dependencies(job, dependency.type):
                yield FieldError(path, f"{dependency.type} itself waits for {type}")


def _list_all_dependencies(job: Job, type: ReplicaType) -> set[ReplicaType]:
    """Return the type and all that it waits for, directly or not."""
    found, new = set[ReplicaType](), {type}
    while new:
        found |= new
        specs = [job.replicas[name] for name in new if name in job.replicas]
        new = {dependency.type for spec in specs for dependency in spec.depends_on} - found
    return found
