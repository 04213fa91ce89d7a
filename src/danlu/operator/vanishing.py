"""Pods that are gone are told from pods that the cache does not show yet.

Jobs and pods come by different watches. An operator that takes over may know the status that its
predecessor wrote a moment ago and not the pods that it speaks of: taken for lost, they would be
counted as restarts, and pods that train would be removed.
"""

from __future__ import annotations

from collections.abc import Sequence

from danlu.kube.client import Client, Selection
from danlu.kube.store import Store
from danlu.kube.types import Key
from danlu.operator.types import JobObject, PodObject
from danlu.operator.writing import Children
from danlu.training.rendering import JOB_NAME
from danlu.training.types import Job

__all__ = ["Vanishing"]


class Vanishing:
    """Knows of the pods of one kind of jobs which of them ended before the cache's eyes."""

    def __init__(
        self, client: Client, jobs: Store[JobObject], *, pods: Children[PodObject]
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._pods = pods
        self._ended: dict[str, set[str]] = {}

    def __len__(self) -> int:
        """Of how many jobs something is remembered."""
        return len(self._ended)

    def seen(self, old: PodObject | None, new: PodObject | None) -> None:
        """A change of a pod; a handler of the informer."""
        owner = old.metadata.controller if old is not None and new is None else None
        if old is None or owner is None:
            return
        job = self._jobs.get(Key(old.metadata.namespace, owner.name))
        if job is not None and job.metadata.uid == owner.uid:
            self._ended.setdefault(owner.uid, set()).add(old.metadata.uid)

    async def behind(self, job: Job, pods: Sequence[PodObject]) -> bool:
        """Whether a pod that the job's status speaks of is there, and not among these.

        The server is asked only where one is missing whose end was not seen.
        """
        shown = {pod.metadata.uid for pod in pods} | self._ended.get(job.uid, set())
        spoken = (
            one.current for one in job.status.records.values() if not (one.completed or one.failed)
        )
        missing = {uid for uid in spoken if uid and uid not in shown}
        if not missing:
            return False
        theirs = Selection(job.namespace, labels=f"{JOB_NAME}={job.name}")
        there = await self._client.list(self._pods.resource, theirs)
        return any(_owned_by(pod, job) and pod.metadata.uid in missing for pod in there.items)

    def settled(self, uid: str) -> None:
        """The job's status speaks no more of what has ended, or the job is no more."""
        self._ended.pop(uid, None)


def _owned_by(pod: PodObject, job: Job) -> bool:
    """Whether it was not released since."""
    owner = pod.metadata.controller
    return owner is not None and owner.uid == job.uid
