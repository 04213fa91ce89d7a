"""Explain why a job or its replicas wait, with what the cluster says about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec

from danlu.errors import OutsideError
from danlu.jobs.kubernetes.kueue import (
    describe_admission,
    describe_evictions,
    find_position,
    list_workloads,
    queue_of,
)
from danlu.jobs.kubernetes.objects import EVENT, POD_GROUP, JobObject, PodObject
from danlu.jobs.types import JobView
from danlu.kube.client import Client
from danlu.kube.watch import ListOptions
from danlu.util.tasks import run_concurrently

# All pods of a job usually wait for the same reason, so it suffices to ask about a few.
_MAX_PODS = 5


class WaitingReasons(msgspec.Struct, frozen=True):
    """What the cluster says about the waiting of a job and its replicas.

    Attributes:
        events: Reason and message of the latest Warning event about the job and its pods, by UID.
            Without one about a job that has no pods, what its PodGroup waits for.
        admission: What the job waits for in a queue of Kueue; empty if it is in none.
        evictions: How often and why Kueue evicted the job; empty if it never did.
    """

    events: Mapping[str, str] = {}
    admission: str = ""
    evictions: str = ""


NO_REASONS = WaitingReasons()


async def find_waiting_reasons(
    client: Client, job: JobObject, view: JobView, pods: Iterable[PodObject]
) -> WaitingReasons:
    """Return why a job waits, of which ``view`` is the view and ``pods`` are the pods.

    What the user may not read is left out.
    """
    if view.finished:
        return NO_REASONS
    namespace, uid = job.metadata.namespace, job.metadata.uid
    pods = list(pods)
    events = await _latest_warnings(client, namespace, _objects_waiting(view, pods, uid))
    if not pods and uid not in events and not job.suspend:
        events[uid] = await _describe_pod_group(client, namespace, job.metadata.name)
    queue = queue_of(job.metadata.labels)
    workloads = await list_workloads(client, namespace, uid=uid) if queue else None
    if workloads is None:
        return WaitingReasons(events)
    workload = workloads.get(uid)
    position = await find_position(client, workload) if workload is not None else None
    return WaitingReasons(
        events, describe_admission(workload, queue, position), describe_evictions(workload)
    )


async def _describe_pod_group(client: Client, namespace: str, name: str) -> str:
    """Return why Volcano has not admitted the PodGroup of a job to its queue; empty if it has.

    Pods are only created then.
    """
    try:
        group = await client.get(POD_GROUP, name, namespace=namespace)
    except OutsideError:
        return ""  # another scheduler, or the user may not read it
    if group.status.phase not in ("", "Pending"):
        return ""
    messages = [condition.message for condition in group.status.conditions if condition.message]
    start = f"its PodGroup waits for queue {group.spec.queue or 'default'} of Volcano"
    return ": ".join((start, *messages[-1:]))


async def find_admissions(
    client: Client, namespace: str, jobs: Iterable[JobObject]
) -> Mapping[str, WaitingReasons]:
    """Return what jobs of a namespace wait for in queues of Kueue, by UID; one request for all."""
    queues = {job.metadata.uid: queue_of(job.metadata.labels) for job in jobs if job.suspend}
    workloads = await list_workloads(client, namespace) if any(queues.values()) else None
    if workloads is None:
        return {}
    return {
        uid: WaitingReasons(admission=describe_admission(workloads.get(uid), queue))
        for uid, queue in queues.items()
        if queue
    }


def _objects_waiting(view: JobView, pods: Iterable[PodObject], uid: str) -> list[str]:
    """Return the UIDs of objects whose events may explain why replicas wait.

    These are the job's own ``uid`` and those of pending pods; nothing if no replica waits.
    """
    if not any(replica.waits for replica in view.replicas):
        return []
    pending = [pod.metadata.uid for pod in pods if pod.status.phase in ("", "Pending")]
    return [uid, *pending[:_MAX_PODS]]


async def _latest_warnings(client: Client, namespace: str, uids: Sequence[str]) -> dict[str, str]:
    """Return reason and message of the last Warning event of each object, by UID.

    Objects without one are left out, and so are all if the user may not list events.
    """
    warnings = await run_concurrently(
        partial(_latest_warning, client, namespace, uid) for uid in uids
    )
    return {uid: text for uid, text in zip(uids, warnings, strict=True) if text}


async def _latest_warning(client: Client, namespace: str, uid: str) -> str:
    selection = ListOptions(namespace, fields=f"involvedObject.uid={uid},type=Warning")
    try:
        events = (await client.list(EVENT, selection)).items
    except OutsideError:
        return ""
    newest = max(events, key=lambda event: str(event.last_timestamp or ""), default=None)
    return "" if newest is None else ": ".join(filter(None, (newest.reason, newest.message)))
