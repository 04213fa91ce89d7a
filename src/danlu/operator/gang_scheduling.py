"""Gang scheduling: the replicas of a job are scheduled together or not at all.

Volcano and the coscheduling plugin of scheduler-plugins each have a kind PodGroup. A job has a
PodGroup of the same name, and its pods refer to it. With Volcano, pods are not created before the
PodGroup has been admitted to its queue. Replicas that do not run at the same time as the others are
no members: those that others wait for to complete, and those that wait until others are ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from danlu.kube.resources import Resource
from danlu.kube.types import Manifest
from danlu.operator.types import OperatorSettings, PodGroupObject
from danlu.training.framework import Framework
from danlu.training.pod_template import list_containers, pod_spec, replace_metadata, replace_spec
from danlu.training.replicas import desired_replicas, types_in_order
from danlu.training.types import Job, JobStatus, ReplicaId, ReplicaType, SchedulingPolicy
from danlu.util.quantity import sum_quantities

VOLCANO = "volcano"

_VOLCANO_GROUPS = Resource(
    "scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", PodGroupObject
)
_COSCHEDULING_GROUPS = Resource(
    "scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", PodGroupObject
)


def pod_group_resource(scheduler: str) -> Resource[PodGroupObject]:
    """Return the PodGroup resource of a scheduler."""
    return _VOLCANO_GROUPS if scheduler == VOLCANO else _COSCHEDULING_GROUPS


def build_pod_group(
    job: Job,
    framework: Framework,
    *,
    settings: OperatorSettings,
    priorities: Mapping[str, int] = {},
) -> Manifest | None:
    """Return the job's PodGroup, without an owner; None if no gang scheduler is configured.

    ``priorities`` are the values of the classes that :func:`relevant_priority_classes` returns.
    """
    if not settings.gang_scheduler:
        return None
    policy = job.run_policy.scheduling_policy or SchedulingPolicy()
    members = _min_members(job, framework)
    resources = policy.min_resources or sum_min_resources(job, framework, members, priorities)
    spec: Manifest = {"minMember": members, "minResources": dict(resources)}
    if settings.gang_scheduler == VOLCANO:
        spec |= {"queue": policy.queue or "default", "priorityClassName": policy.priority_class}
    else:
        spec["scheduleTimeoutSeconds"] = policy.schedule_timeout_seconds
    metadata: Manifest = {"name": job.name}
    if job.annotations:
        metadata["annotations"] = dict(job.annotations)
    spec = {name: value for name, value in spec.items() if value not in (None, "", {})}
    resource = pod_group_resource(settings.gang_scheduler)
    return resource.to_manifest({"metadata": metadata, "spec": spec})


def relevant_priority_classes(job: Job, framework: Framework) -> frozenset[str]:
    """Return the PriorityClasses that decide which replicas ``minResources`` includes.

    Empty if it includes all replicas, or if the job sets it.
    """
    policy = job.run_policy.scheduling_policy or SchedulingPolicy()
    types = [type for type in _gang_types(job, framework) if desired_replicas(job, type, framework)]
    if policy.min_resources or len(types) < 2:
        return frozenset()
    if _min_members(job, framework) >= _total_replicas(job, framework):
        return frozenset()
    return frozenset(filter(None, (_priority_class(job, type) for type in types)))


def sum_min_resources(
    job: Job, framework: Framework, members: int, priorities: Mapping[str, int] = {}
) -> dict[str, str]:
    """Add up the requests of ``members`` replicas, those of a higher PriorityClass first.

    A type without a PriorityClass, or with one that is not in ``priorities``, has priority 0
    (training-operator, pkg/controller.v1/common, CalcPGMinResources). Types of the same priority
    keep their order; Kubeflow iterates over a Go map here, so its sum changes with every call.
    """
    types = sorted(
        _gang_types(job, framework),
        key=lambda type: -priorities.get(_priority_class(job, type), 0),
    )
    requests: dict[str, list[object]] = {}
    for type in types:
        count = min(desired_replicas(job, type, framework), members)
        members -= count
        for name, quantity in _resource_requests(job, type):
            requests.setdefault(name, []).extend([quantity] * count)
    return {
        name: sum_quantities(quantities)
        for name, quantities in sorted(requests.items())
        if quantities
    }


def may_create_pods(group: PodGroupObject | None, scheduler: str) -> bool:
    """Return whether pods may be created: Volcano must have admitted the group to its queue."""
    if scheduler != VOLCANO:
        return True
    return group is not None and group.status.phase not in ("", "Pending")


def add_scheduler_fields(
    job: Job,
    framework: Framework,
    replica: ReplicaId,
    manifest: Manifest,
    *,
    settings: OperatorSettings,
) -> Manifest:
    """Return the pod as a member of its job's PodGroup; a declared ``schedulerName`` is kept."""
    if not settings.gang_scheduler or not _is_member(job, framework, replica.type):
        return manifest
    metadata = manifest["metadata"]
    if settings.gang_scheduler == VOLCANO:
        annotations = {
            "scheduling.k8s.io/group-name": job.name,
            "volcano.sh/task-spec": replica.type.lower(),
        }
        changes = {"annotations": {**(metadata.get("annotations") or {}), **annotations}}
    else:
        label = {"scheduling.x-k8s.io/pod-group": job.name}
        changes = {"labels": {**metadata["labels"], **label}}
    scheduler = manifest["spec"].get("schedulerName") or settings.gang_scheduler
    return replace_spec(replace_metadata(manifest, changes), {"schedulerName": scheduler})


def _priority_class(job: Job, type: ReplicaType) -> str:
    spec = pod_spec(job.replicas[type].template)
    return str(spec.get("priorityClassName") or "")


def _is_member(job: Job, framework: Framework, type: ReplicaType) -> bool:
    new = msgspec.structs.replace(job, status=JobStatus())
    dependencies = framework.list_dependencies(new, type)
    waits = any(dependency.status == "Ready" for dependency in dependencies)
    return not waits and not job.is_stage(type)


def _gang_types(job: Job, framework: Framework) -> list[ReplicaType]:
    return [type for type in types_in_order(job, framework) if _is_member(job, framework, type)]


def _total_replicas(job: Job, framework: Framework) -> int:
    return sum(desired_replicas(job, type, framework) for type in _gang_types(job, framework))


def _min_members(job: Job, framework: Framework) -> int:
    """Return how many replicas must be scheduled together (``minMember``)."""
    policy = job.run_policy.scheduling_policy
    if policy is None or policy.min_available is None:
        return _total_replicas(job, framework)
    return policy.min_available


def _resource_requests(job: Job, type: ReplicaType) -> Iterator[tuple[str, object]]:
    """Yield what a replica requests: the requests of its containers, or else their limits."""
    for container in list_containers(job.replicas[type].template):
        resources = container.get("resources") or {}
        yield from (resources.get("requests") or resources.get("limits") or {}).items()
