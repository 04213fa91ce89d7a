"""What a cluster tells of a job and its pods: the last warning of each, as its events say it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from danlu.errors import OutsideError
from danlu.jobs.kubernetes.objects import EVENT, PodObject
from danlu.jobs.kubernetes.together import together
from danlu.jobs.types import JobView
from danlu.kube.client import Client, Selection

__all__ = ["concerned", "warnings_of"]

#: So many pods are asked about at once: those of a job mostly wait for the same thing.
_MOST = 5


def concerned(view: JobView, pods: Iterable[PodObject], uid: str) -> list[str]:
    """The uids of what somebody should have said something about: the job's ``uid``, its pods'.

    Nothing where no replica waits.
    """
    if view.finished or not any(one.waits for one in view.replicas):
        return []
    waiting = [one.metadata.uid for one in pods if one.status.phase in ("", "Pending")]
    return [uid, *waiting[:_MOST]]


async def warnings_of(client: Client, namespace: str, uids: Sequence[str]) -> dict[str, str]:
    """The last warning about each of these objects, by uid; none where they may not be read."""
    found = await together(_last(client, namespace, uid) for uid in uids)
    return {uid: text for uid, text in zip(uids, found, strict=True) if text}


async def _last(client: Client, namespace: str, uid: str) -> str:
    about = Selection(namespace, fields=f"involvedObject.uid={uid},type=Warning")
    try:
        events = (await client.list(EVENT, about)).items
    except OutsideError:
        return ""
    newest = max(events, key=lambda one: str(one.last_timestamp or ""), default=None)
    return "" if newest is None else newest.message
