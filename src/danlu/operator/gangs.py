"""Gangs: the replicas of a job are scheduled together or not at all.

``volcano`` and the schedulers of scheduler-plugins each have a kind PodGroup; a job has one of its
own name, and its pods say that they belong to it. Volcano's pods are not made before its PodGroup
has a place in the queue.
"""

from __future__ import annotations

from collections.abc import Iterator

from danlu.kube.resources import Resource
from danlu.kube.types import Document
from danlu.operator.types import OperatorSettings, PodGroupObject
from danlu.training.framework import Framework
from danlu.training.frameworks.pods import containers, with_metadata, with_spec
from danlu.training.quantities import added
from danlu.training.standing import types_in_order, wanted
from danlu.training.types import Job, ReplicaId, ReplicaType, SchedulingPolicy

__all__ = ["VOLCANO", "may_begin", "pod_group", "pod_groups", "with_gang"]

VOLCANO = "volcano"

_VOLCANO_GROUPS = Resource(
    "scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", PodGroupObject
)
_PLUGINS_GROUPS = Resource(
    "scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", PodGroupObject
)


def pod_groups(scheduler: str) -> Resource[PodGroupObject]:
    """The kind of PodGroup that this scheduler has."""
    return _VOLCANO_GROUPS if scheduler == VOLCANO else _PLUGINS_GROUPS


def pod_group(job: Job, framework: Framework, *, settings: OperatorSettings) -> Document | None:
    """The job's PodGroup; None without a gang scheduler. It is not owned yet."""
    if not settings.gang_scheduler:
        return None
    policy = job.run_policy.scheduling_policy or SchedulingPolicy()
    total = sum(wanted(job, type) for type in types_in_order(job, framework))
    members = total if policy.min_available is None else policy.min_available
    resources = policy.min_resources or min_resources(job, framework, members)
    spec: Document = {"minMember": members, "minResources": dict(resources)}
    if settings.gang_scheduler == VOLCANO:
        spec |= {"queue": policy.queue or "default", "priorityClassName": policy.priority_class}
    else:
        spec["scheduleTimeoutSeconds"] = policy.schedule_timeout_seconds
    given = {name: value for name, value in spec.items() if value not in (None, "", {})}
    metadata: Document = {"name": job.name}
    if job.annotations:
        metadata["annotations"] = dict(job.annotations)
    resource = pod_groups(settings.gang_scheduler)
    return resource.document({"metadata": metadata, "spec": given})


def min_resources(job: Job, framework: Framework, members: int) -> dict[str, str]:
    """What the first ``members`` replicas ask for, in the order in which types decide.

    Kubeflow's takes them in the order of a Go map, so that it changes at every look.
    """
    asked: dict[str, list[object]] = {}
    for type in types_in_order(job, framework):
        number = min(wanted(job, type), members)
        members -= number
        for name, quantity in _requests(job, type):
            asked.setdefault(name, []).extend([quantity] * number)
    return {name: added(quantities) for name, quantities in sorted(asked.items()) if quantities}


def may_begin(group: PodGroupObject | None, scheduler: str) -> bool:
    """Whether pods may be made: Volcano's group must have been let into its queue."""
    if scheduler != VOLCANO:
        return True
    return group is not None and group.status.phase not in ("", "Pending")


def with_gang(
    job: Job, replica: ReplicaId, document: Document, *, settings: OperatorSettings
) -> Document:
    """The pod as a member of its job's PodGroup; a scheduler that its template names stays."""
    if not settings.gang_scheduler:
        return document
    metadata = document["metadata"]
    if settings.gang_scheduler == VOLCANO:
        marks = {
            "scheduling.k8s.io/group-name": job.name,
            "volcano.sh/task-spec": replica.type.lower(),
        }
        changed = {"annotations": {**(metadata.get("annotations") or {}), **marks}}
    else:
        label = {"scheduling.x-k8s.io/pod-group": job.name}
        changed = {"labels": {**metadata["labels"], **label}}
    scheduler = document["spec"].get("schedulerName") or settings.gang_scheduler
    return with_spec(with_metadata(document, changed), {"schedulerName": scheduler})


def _requests(job: Job, type: ReplicaType) -> Iterator[tuple[str, object]]:
    """What one replica asks for: requests of its containers, their limits where they have none."""
    for container in containers(job.replicas[type].template):
        resources = container.get("resources") or {}
        yield from (resources.get("requests") or resources.get("limits") or {}).items()
