"""Objects that bear a job's labels become the job's; those that lost them are let go.

The rules are those of Kubernetes' own controllers (pkg/controller/controller_ref_manager.go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from danlu.kube.client import Client
from danlu.kube.controller import owner_of
from danlu.kube.failures import Conflict, Invalid, NotFound
from danlu.kube.patches import Patch, strategic_patch
from danlu.kube.resources import Resource
from danlu.kube.types import Key, Object
from danlu.operator.children import owner_reference
from danlu.operator.observing import is_ours
from danlu.operator.types import JobObject
from danlu.operator.writing import Children
from danlu.training.cluster import GROUP
from danlu.training.framework import Framework
from danlu.training.rendering import JOB_NAME
from danlu.training.types import Job

__all__ = ["Adopter", "frees_name", "job_keys", "job_of_label"]


class Adopter:
    """Adopts and releases the pods and Services of jobs of one kind."""

    def __init__(
        self,
        client: Client,
        resource: Resource[JobObject],
        framework: Framework,
        *,
        children: Sequence[Children[Any]],
    ) -> None:
        self._client = client
        self._resource = resource
        self._framework = framework
        self._children = children

    async def settle(self, job: Job) -> bool:
        """Adopt what is the job's and release what is no more; whether there was any.

        What changed is seen in the cache later, and the job is looked at again then.
        """
        changes = [
            (kind, one, patch) for kind in self._children for one, patch in self._changes(kind, job)
        ]
        if not changes or not await self._is_real(job):
            return False
        for kind, one, patch in changes:
            await self._patch(kind, one, patch)
        return True

    def _changes(
        self, kind: Children[Any], job: Job
    ) -> Iterator[tuple[Object, Callable[[Object], Patch]]]:
        for one in kind.store.by("job", f"{job.namespace}/{job.name}"):
            free = one.metadata.controller is None and one.metadata.deletion_timestamp is None
            if free and is_ours(one.metadata, job.name, self._framework):
                yield one, lambda obj: _adoption(obj, job)
        for one in kind.of(job.uid):
            living = one.metadata.deletion_timestamp is None
            if living and not is_ours(one.metadata, job.name, self._framework):
                yield one, lambda obj: _release(obj, job)

    async def _is_real(self, job: Job) -> bool:
        """Whether the job is there now: a cache may show one that was deleted and made anew."""
        try:
            found = await self._client.get(self._resource, job.name, namespace=job.namespace)
        except NotFound:
            return False
        metadata = found.metadata
        return metadata.uid == job.uid and metadata.deletion_timestamp is None

    async def _patch(
        self, kind: Children[Any], one: Object, patch: Callable[[Object], Patch]
    ) -> None:
        try:
            await self._client.patch(
                kind.resource, one.metadata.name, patch(one), namespace=one.metadata.namespace
            )
        except (NotFound, Conflict, Invalid):
            # Gone, or another's already: the cache will say.
            return


def job_keys(framework: Framework) -> Callable[[Object], Iterable[Key]]:
    """The job of this kind that an object is about: its owner's, else that of its labels."""
    owners = owner_of(framework.kind, GROUP)

    def keys(obj: Object) -> Iterable[Key]:
        if obj.metadata.controller is not None:
            return owners(obj)
        name = obj.metadata.labels.get(JOB_NAME, "")
        if not is_ours(obj.metadata, name, framework):
            return ()
        return (Key(obj.metadata.namespace, name),)

    return keys


def job_of_label(obj: Object) -> Iterable[Key]:
    """The job, of whatever kind, that an object's label names."""
    name = obj.metadata.labels.get(JOB_NAME, "")
    return (Key(obj.metadata.namespace, name),) if name else ()


def frees_name(old: Object | None, new: Object | None) -> bool:
    """Whether an object is gone that nobody owned: a job may wait for its name."""
    return old is not None and new is None and old.metadata.controller is None


def _adoption(obj: Object, job: Job) -> Patch:
    # The uid is a precondition: another object of this name is not meant.
    owners = [owner_reference(job)]
    return strategic_patch({"metadata": {"uid": obj.metadata.uid, "ownerReferences": owners}})


def _release(obj: Object, job: Job) -> Patch:
    owners = [{"$patch": "delete", "uid": job.uid}]
    return strategic_patch({"metadata": {"uid": obj.metadata.uid, "ownerReferences": owners}})
