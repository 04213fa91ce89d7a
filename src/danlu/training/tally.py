"""How many replicas of each type stand where: what a framework decides by, and what is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from danlu.training.framework import Framework, Tally
from danlu.training.standing import Scene, State, types_in_order, wanted
from danlu.training.types import Job, ReplicaStatus, ReplicaType

__all__ = ["folded", "replica_statuses", "tallies"]

SCALABLE = ("PyTorchJob", "PaddleJob", "JAXJob")
"""Kinds with a scale subresource, which reads the selector out of the status."""


def tallies(job: Job, framework: Framework, scene: Scene) -> dict[ReplicaType, Tally]:
    """Count each replica of the job once, by type, in the order in which types decide.

    What succeeded is counted by its record, so also when nothing is left of it (Kubeflow forgets,
    and makes it again).
    """
    expected = {type: wanted(job, type) for type in types_in_order(job, framework)}
    counts: dict[ReplicaType, Counter[State]] = {type: Counter() for type in expected}
    restarting: Counter[ReplicaType] = Counter()
    first: set[ReplicaType] = set()
    for one in scene.standings:
        counts[one.id.type][one.state] += 1
        if one.restarting:
            restarting[one.id.type] += 1
        if one.id.index == 0 and one.state is State.SUCCEEDED:
            first.add(one.id.type)
    return {
        type: Tally(
            expected=number,
            active=counts[type][State.ACTIVE],
            succeeded=counts[type][State.SUCCEEDED],
            failed=counts[type][State.FAILED],
            restarting=restarting[type],
            first_succeeded=type in first,
        )
        for type, number in expected.items()
    }


def replica_statuses(
    job: Job, counted: Mapping[ReplicaType, Tally]
) -> dict[ReplicaType, ReplicaStatus]:
    """Kubeflow's ``replicaStatuses``; failed are those for good and those to be made again."""
    return {
        type: ReplicaStatus(
            active=tally.active,
            succeeded=tally.succeeded,
            failed=tally.failed + tally.restarting,
            selector=_selector(job, type),
        )
        for type, tally in counted.items()
    }


def folded(statuses: Mapping[ReplicaType, ReplicaStatus]) -> dict[ReplicaType, ReplicaStatus]:
    """What is shown of a job that succeeded: who still ran succeeded with it, as in Kubeflow."""
    return {
        type: ReplicaStatus(
            succeeded=one.succeeded + one.active, failed=one.failed, selector=one.selector
        )
        for type, one in statuses.items()
    }


def _selector(job: Job, type: ReplicaType) -> str:
    if job.kind not in SCALABLE:
        return ""
    labels = {
        "job-name": job.name,
        "operator-name": f"{job.kind.lower()}-controller",
        "replica-type": type.lower(),
    }
    return ",".join(f"training.kubeflow.org/{key}={value}" for key, value in labels.items())
