"""Explain why replicas wait with what the cluster's events say about their pods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from danlu.errors import OutsideError
from danlu.jobs.kubernetes.objects import EVENT, PodObject
from danlu.jobs.types import JobView
from danlu.kube.client import Client
from danlu.kube.watch import ListOptions
from danlu.util.tasks import run_concurrently

# All pods of a job usually wait for the same reason, so it suffices to ask about a few.
_MAX_PODS = 5


def objects_waiting(view: JobView, pods: Iterable[PodObject], uid: str) -> list[str]:
    """Return the UIDs of objects whose events may explain why replicas wait.

    These are the job's own ``uid`` and those of pending pods; nothing if no replica waits.
    """
    if view.finished or not any(replica.waits for replica in view.replicas):
        return []
    pending = [pod.metadata.uid for pod in pods if pod.status.phase in ("", "Pending")]
    return [uid, *pending[:_MAX_PODS]]


async def latest_warnings(client: Client, namespace: str, uids: Sequence[str]) -> dict[str, str]:
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
