"""Which Services a job is to have: one for each replica that others may look for."""

from __future__ import annotations

from collections.abc import Collection

from danlu.training.framework import Framework
from danlu.training.standing import types_in_order, wanted
from danlu.training.types import (
    CleanPodPolicy,
    ConditionType,
    CreateReplica,
    Decision,
    DeleteReplica,
    Job,
    Observed,
    ReplicaId,
)

__all__ = ["services_wanted"]


def services_wanted(
    job: Job,
    framework: Framework,
    *,
    observed: Observed,
    decision: Decision,
    there: Collection[ReplicaId],
) -> frozenset[ReplicaId]:
    """The replicas that are to have a Service once ``decision`` is carried out.

    ``there`` are those that have one. While a job goes on, a replica keeps its Service through
    all its attempts. When it is finished, a Service goes with its pod, as the clean pod policy
    has it; with a suspended job's pods go all.
    """
    if not framework.services:
        return frozenset()
    if decision.status.finished:
        if job.run_policy.clean_pod_policy is CleanPodPolicy.NONE:
            return frozenset(there)
        return _left(observed, decision) & frozenset(there)
    if decision.status.has(ConditionType.SUSPENDED):
        return frozenset()
    made = {one.replica for one in decision.actions if isinstance(one, CreateReplica)}
    return _all(job, framework) & (made | _left(observed, decision) | frozenset(there))


def _left(observed: Observed, decision: Decision) -> frozenset[ReplicaId]:
    """The replicas of which a pod stays."""
    ended = {one.uid for one in decision.actions if isinstance(one, DeleteReplica)}
    stay = (one for one in observed.replicas if one.uid not in ended and not one.deleting)
    return frozenset(one.id for one in stay)


def _all(job: Job, framework: Framework) -> frozenset[ReplicaId]:
    return frozenset(
        ReplicaId(type, index)
        for type in types_in_order(job, framework)
        for index in range(wanted(job, type))
    )
