"""What frameworks ask of a job's replicas: how many there are, who leads, what their ends mean."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from danlu.training.framework import Finding, Tally, Verdict
from danlu.training.types import ConditionType, Job, ReplicaId, ReplicaType, Topology

__all__ = [
    "at_least_one",
    "count",
    "endpoint",
    "exactly_one",
    "first_present",
    "leader",
    "members",
    "total",
    "verdict",
]

_ABSENT = Tally()


def count(job: Job, type: ReplicaType) -> int:
    """How many replicas of ``type`` are asked for, 0 where the job has no such type."""
    spec = job.replicas.get(type)
    return spec.replicas if spec else 0


def total(job: Job) -> int:
    """How many replicas of all types are asked for."""
    return sum(spec.replicas for spec in job.replicas.values())


def members(job: Job, type: ReplicaType) -> tuple[ReplicaId, ...]:
    """The replicas of ``type``, by index."""
    return tuple(ReplicaId(type, index) for index in range(count(job, type)))


def endpoint(topology: Topology, replica: ReplicaId, *, qualified: bool = False) -> str:
    """``host:port`` of a replica."""
    return f"{topology.host(replica, qualified=qualified)}:{topology.port(replica)}"


def first_present(job: Job, *types: ReplicaType) -> ReplicaType:
    """The first of ``types`` that the job has; the last of them where it has none."""
    return next((type for type in types if type in job.replicas), types[-1])


def leader(job: Job, *types: ReplicaType) -> ReplicaId:
    """The first replica of the first of ``types`` that the job has, else of the job's first."""
    return ReplicaId(
        next((type for type in (*types, *job.replicas) if count(job, type)), types[0]), 0
    )


def verdict(
    types: Sequence[ReplicaType],
    tallies: Mapping[ReplicaType, Tally],
    *,
    driver: ReplicaType,
    done: bool | None = None,
    forgiven: Container[ReplicaType] = (),
) -> Verdict | None:
    """The outcome of a job that the type ``driver`` leads: the first end found, in fixed order.

    The job succeeds when ``done`` (unless given: when every replica of the driver succeeded) and
    fails when any replica failed for good whose type is not ``forgiven``. The types are asked in
    the order of ``types``, for success before failure, so that what ends in one pass always ends
    the same way; Kubeflow's operator iterates a Go map there, or gives both conditions.
    """
    if done is None:
        tally = tallies.get(driver, _ABSENT)
        done = 0 < tally.expected <= tally.succeeded
    for type in types:
        if type == driver and done:
            return Verdict(ConditionType.SUCCEEDED, type)
        if tallies.get(type, _ABSENT).failed and type not in forgiven:
            return Verdict(ConditionType.FAILED, type)
    for type in types:
        if tallies.get(type, _ABSENT).restarting:
            return Verdict(ConditionType.RESTARTING, type)
    if tallies.get(driver, _ABSENT).active:
        return Verdict(ConditionType.RUNNING, driver)
    return None


def exactly_one(job: Job, type: ReplicaType, *, field: str) -> Iterator[Finding]:
    """A finding where the job has ``type``, but not just one replica of it."""
    if type in job.replicas and count(job, type) != 1:
        yield Finding(f"spec.{field}[{type}].replicas", "must be 1", _one_hint(type))


def at_least_one(job: Job, type: ReplicaType, *, field: str) -> Iterator[Finding]:
    """A finding where the job has ``type``, but no replica of it, so that it would never end."""
    if type in job.replicas and count(job, type) < 1:
        yield Finding(f"spec.{field}[{type}].replicas", "must be at least 1")


def _one_hint(type: ReplicaType) -> str:
    return f"a job has one {type}; more replicas are Workers"
