"""Controller references: adopt objects with a job's labels, release objects that lost them.

The rules are those of Kubernetes' controllers (pkg/controller/controller_ref_manager.go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from danlu.kube.client import Client
from danlu.kube.controller import map_to_owner
from danlu.kube.errors import Conflict, Invalid, NotFound
from danlu.kube.patch import Patch, strategic_patch
from danlu.kube.resources import Resource
from danlu.kube.types import Key, Object
from danlu.operator.builders import owner_reference
from danlu.operator.decoding import has_job_labels
from danlu.operator.owned_objects import OwnedObjects
from danlu.operator.types import JobObject, job_resource
from danlu.training.framework import Framework
from danlu.training.rendering import JOB_NAME
from danlu.training.types import Job


class ControllerRefManager:
    """Adopts and releases the pods and Services of the jobs of one kind."""

    def __init__(
        self,
        client: Client,
        resource: Resource[JobObject],
        framework: Framework,
        *,
        owned: Sequence[OwnedObjects[Any]],
    ) -> None:
        self._client = client
        self._resource = resource
        self._framework = framework
        self._owned = owned

    async def claim(self, job: Job) -> bool:
        """Adopt and release objects; return whether there were any.

        The changes trigger another reconciliation when the cache shows them.
        """
        changes = [
            (objects.resource, obj, patch)
            for objects in self._owned
            for obj, patch in self._find_changes(objects, job)
        ]
        # Read the job again before adopting: the cache may show one that was deleted and recreated.
        if not changes or not await self._job_still_exists(job):
            return False
        for resource, obj, patch in changes:
            await self._patch_object(resource, obj, patch)
        return True

    def _find_changes(self, objects: OwnedObjects[Any], job: Job) -> Iterator[tuple[Object, Patch]]:
        for obj in objects.indexer.by_index("job", f"{job.namespace}/{job.name}"):
            orphan = obj.metadata.controller is None and obj.metadata.deletion_timestamp is None
            if orphan and has_job_labels(obj.metadata, job.name, self._framework):
                yield obj, _adoption_patch(obj, job)
        for obj in objects.owned_by(job.uid):
            alive = obj.metadata.deletion_timestamp is None
            if alive and not has_job_labels(obj.metadata, job.name, self._framework):
                yield obj, _release_patch(obj, job)

    async def _job_still_exists(self, job: Job) -> bool:
        try:
            existing = await self._client.get(self._resource, job.name, namespace=job.namespace)
        except NotFound:
            return False
        metadata = existing.metadata
        return metadata.uid == job.uid and metadata.deletion_timestamp is None

    async def _patch_object(self, resource: Resource[Any], obj: Object, patch: Patch) -> None:
        metadata = obj.metadata
        try:
            await self._client.patch(resource, metadata.name, patch, namespace=metadata.namespace)
        except (NotFound, Conflict, Invalid):
            # Deleted, or adopted by another controller: the cache will show it.
            return


def map_to_job(framework: Framework) -> Callable[[Object], Iterable[Key]]:
    """Return a function that maps an object to its job of this kind, by owner or else by labels."""
    get_owner = map_to_owner(framework.kind, job_resource(framework).group)

    def get_keys(obj: Object) -> Iterable[Key]:
        if obj.metadata.controller is not None:
            return get_owner(obj)
        name = obj.metadata.labels.get(JOB_NAME, "")
        if not has_job_labels(obj.metadata, name, framework):
            return ()
        return (Key(obj.metadata.namespace, name),)

    return get_keys


def map_label_to_job(obj: Object) -> Iterable[Key]:
    """Return the job, of any kind, that an object's label names."""
    name = obj.metadata.labels.get(JOB_NAME, "")
    return (Key(obj.metadata.namespace, name),) if name else ()


def releases_name(old: Object | None, new: Object | None) -> bool:
    """Return whether an object without an owner was deleted: a job may wait for its name."""
    return old is not None and new is None and old.metadata.controller is None


def _adoption_patch(obj: Object, job: Job) -> Patch:
    # The uid is a precondition, so that another object of this name is not adopted.
    owners = [owner_reference(job.api_version, job.kind, job.name, job.uid)]
    return strategic_patch({"metadata": {"uid": obj.metadata.uid, "ownerReferences": owners}})


def _release_patch(obj: Object, job: Job) -> Patch:
    owners = [{"$patch": "delete", "uid": job.uid}]
    return strategic_patch({"metadata": {"uid": obj.metadata.uid, "ownerReferences": owners}})
