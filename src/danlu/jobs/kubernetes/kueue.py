"""Jobs in queues: Kueue's, which suspends a job until its queue has quota for it, or Volcano's.

Kueue keeps a Workload for each job in a queue. Its conditions say what the job waits for, and
``spec.active`` is what users suspend it with: Kueue itself resumes a job of which only
``spec.runPolicy.suspend`` was set. Fields and conditions are those of kubernetes-sigs/kueue 0.19,
``apis/kueue/v1beta2/workload_types.go``; ``v1beta1`` has the same names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from danlu.errors import OutsideError, UsageError
from danlu.kube.client import Client
from danlu.kube.core_v1 import PodCondition
from danlu.kube.errors import Forbidden, NotFound
from danlu.kube.patch import merge_patch
from danlu.kube.resources import Resource
from danlu.kube.types import Object
from danlu.kube.watch import ListOptions
from danlu.training.names import KUEUE_QUEUE_LABEL
from danlu.training.types import Job, SchedulingPolicy

_GROUP = "kueue.x-k8s.io"
_VISIBILITY_GROUP = "visibility.kueue.x-k8s.io"
_VERSIONS = ("v1beta2", "v1beta1")
_VOLCANO_QUEUES = Resource(
    "scheduling.volcano.sh", "v1beta1", "queues", "Queue", Object, namespaced=False
)
_JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"

_Model = TypeVar("_Model")


class _AdmissionCheck(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    state: str = ""
    message: str = ""


class _EvictionCount(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    count: int = 0


class _SchedulingStats(msgspec.Struct, frozen=True, rename="camel"):
    evictions: tuple[_EvictionCount, ...] = ()


class _WorkloadSpec(msgspec.Struct, frozen=True, rename="camel"):
    queue_name: str = ""
    active: bool = True


class _WorkloadStatus(msgspec.Struct, frozen=True, rename="camel"):
    conditions: tuple[PodCondition, ...] = ()
    admission_checks: tuple[_AdmissionCheck, ...] = ()
    scheduling_stats: _SchedulingStats | None = None


class QueuedWorkload(Object, frozen=True, rename="camel", omit_defaults=True):
    """What Kueue knows about a job in a queue."""

    spec: _WorkloadSpec = _WorkloadSpec()
    status: _WorkloadStatus = _WorkloadStatus()

    @property
    def is_pending(self) -> bool:
        """Whether it waits for quota."""
        return self.spec.active and self.true_condition("QuotaReserved") is None

    def true_condition(self, type: str) -> PodCondition | None:
        """Return the condition of that type if it holds."""
        condition = self.condition(type)
        return condition if condition is not None and condition.status == "True" else None

    def condition(self, type: str) -> PodCondition | None:
        """Return the condition of that type."""
        return next((found for found in self.status.conditions if found.type == type), None)


class _PendingWorkload(msgspec.Struct, frozen=True, rename="camel"):
    metadata: Mapping[str, object] = {}
    position_in_local_queue: int = 0


class _PendingWorkloads(msgspec.Struct, frozen=True):
    items: tuple[_PendingWorkload, ...] = ()


# -- reading --------------------------------------------------------------------------------------


def queue_of(labels: Mapping[str, str]) -> str:
    """Return the LocalQueue that a job with these labels is in; empty for none."""
    return labels.get(KUEUE_QUEUE_LABEL, "")


async def list_workloads(
    client: Client, namespace: str, *, uid: str = ""
) -> Mapping[str, QueuedWorkload] | None:
    """Return the Workloads of a namespace, or of the job with this UID, by the UID of their job.

    None if the cluster has no Kueue, or the user may not read them.
    """
    selection = ListOptions(namespace, labels=f"{_JOB_UID_LABEL}={uid}" if uid else _JOB_UID_LABEL)
    for resource in _kueue_resources(_GROUP, "workloads", "Workload", QueuedWorkload):
        try:
            listed = await client.list(resource, selection)
        except NotFound:
            continue  # this version is not served
        except OutsideError:
            return None
        # Of several the newest counts: an elastic job replaces its Workload.
        workloads = sorted(listed.items, key=lambda one: str(one.metadata.creation_timestamp))
        return {workload.metadata.labels[_JOB_UID_LABEL]: workload for workload in workloads}
    return None


async def find_position(client: Client, workload: QueuedWorkload) -> int | None:
    """Return the place of a pending Workload in its LocalQueue, counted from 1.

    None if it waits for nothing, Kueue's visibility API is not installed, or the user may not read
    it.
    """
    if not workload.is_pending:
        return None
    namespace, name = workload.metadata.namespace, workload.metadata.name
    for resource in _kueue_resources(
        _VISIBILITY_GROUP, "localqueues", "LocalQueue", _PendingWorkloads
    ):
        with suppress(OutsideError):
            pending = await client.get(
                resource,
                workload.spec.queue_name,
                namespace=namespace,
                subresource="pendingworkloads",
            )
            for item in pending.items:
                if item.metadata.get("name") == name:
                    return item.position_in_local_queue + 1
    return None


def _kueue_resources(
    group: str, plural: str, kind: str, model: type[_Model]
) -> tuple[Resource[_Model], ...]:
    return tuple(Resource(group, version, plural, kind, model) for version in _VERSIONS)


# -- joining --------------------------------------------------------------------------------------


async def join_queue(client: Client, namespace: str, job: Job, queue: str) -> Job:
    """Return a job that is labelled and suspended for Kueue as it has to be submitted to ``queue``.

    It is not changed if that is a LocalQueue of the namespace, or Kueue's are unknown because the
    user may not list them. For a queue of Volcano label and suspension are removed, and
    ``schedulingPolicy`` names it.

    Raises :class:`UsageError` for a queue that does not exist, with the names of those that do.
    """
    local_queues = _kueue_resources(_GROUP, "localqueues", "LocalQueue", Object)
    kueue = await _list_queues(client, namespace, local_queues)
    if kueue is None or queue in kueue:
        return job
    volcano = await _list_queues(client, namespace, (_VOLCANO_QUEUES,))
    if volcano is None or queue in volcano:
        labels = {key: value for key, value in job.labels.items() if key != KUEUE_QUEUE_LABEL}
        policy = job.run_policy
        scheduling = msgspec.structs.replace(
            policy.scheduling_policy or SchedulingPolicy(), queue=queue
        )
        policy = msgspec.structs.replace(policy, suspend=False, scheduling_policy=scheduling)
        return msgspec.structs.replace(job, labels=labels, run_policy=policy)
    existing = sorted({*kueue, *volcano})
    hint = f"existing queues: {', '.join(existing)}"
    if not existing:
        hint = "the cluster has no queues of Kueue in this namespace, and none of Volcano"
    raise UsageError(f"queue {queue!r} not found in namespace {namespace}", hint=hint)


async def _list_queues(
    client: Client, namespace: str, versions: Sequence[Resource[Object]]
) -> Collection[str] | None:
    """Return the names of queues; none if their kind is not served, None if they are unknown."""
    if not await client.serves_group(versions[0].group):
        return ()
    for resource in versions:
        try:
            queues = (await client.list(resource, ListOptions(namespace))).items
        except NotFound:
            continue
        except Forbidden:
            return None
        return [queue.metadata.name for queue in queues]
    return ()


# -- in words -------------------------------------------------------------------------------------


def describe_admission(
    workload: QueuedWorkload | None, queue: str, position: int | None = None
) -> str:
    """Return what a suspended job in ``queue`` waits for: its quota, a check, or to be resumed."""
    if workload is None:
        return f"admission to queue {queue}: Kueue has not created a Workload for the job"
    if not workload.spec.active:
        evicted = workload.true_condition("Evicted")
        message = evicted.message if evicted is not None else ""
        return ": ".join(filter(None, ("the job to be resumed", message)))
    place = f" (position {position})" if position is not None else ""
    start = f"admission to queue {workload.spec.queue_name or queue}{place}"
    return ": ".join(filter(None, (start, _pending_message(workload))))


def _pending_message(workload: QueuedWorkload) -> str:
    if workload.is_pending:
        reserved = workload.condition("QuotaReserved")
        return reserved.message if reserved is not None else ""
    checks = [check for check in workload.status.admission_checks if check.state != "Ready"]
    return "; ".join(
        f"check {check.name} is {check.state}" + (f": {check.message}" if check.message else "")
        for check in checks
    )


def describe_evictions(workload: QueuedWorkload | None) -> str:
    """Return how often Kueue evicted a job, and why the last time; empty if it never did.

    An eviction does not count towards the restarts of a job.
    """
    if workload is None:
        return ""
    stats, evicted = workload.status.scheduling_stats, workload.condition("Evicted")
    counts: Counter[str] = Counter()
    for eviction in stats.evictions if stats is not None else ():
        counts[eviction.reason] += eviction.count
    if not counts and evicted is not None and evicted.status == "True":
        counts[evicted.reason] = 1
    # Users deactivate a job to suspend it, which needs no explanation.
    del counts["Deactivated"]
    if not counts:
        return ""
    reasons = ", ".join(
        f"{reason} {count} times" if count > 1 else reason for reason, count in counts.items()
    )
    preempted = workload.condition("Preempted") or evicted
    message = preempted.message if preempted is not None else ""
    return ": ".join(filter(None, (f"evicted by Kueue ({reasons})", message)))


# -- changing -------------------------------------------------------------------------------------


async def set_active(client: Client, workload: QueuedWorkload, *, active: bool) -> None:
    """Let Kueue suspend the job of a Workload for good (False), or queue it again."""
    patch = merge_patch({"spec": {"active": active}})
    namespace, name = workload.metadata.namespace, workload.metadata.name
    first, second = _kueue_resources(_GROUP, "workloads", "Workload", QueuedWorkload)
    try:
        await client.patch(first, name, patch, namespace=namespace)
    except NotFound:
        await client.patch(second, name, patch, namespace=namespace)
