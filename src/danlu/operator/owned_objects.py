"""Objects that jobs own: pods and Services, which are watched, and others, which are not."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import anyio
import msgspec

from danlu.errors import DanluError, OutsideError
from danlu.kube.client import Client, DeleteOptions
from danlu.kube.errors import AlreadyExists, Conflict, Invalid, NotFound
from danlu.kube.expectations import Expectations
from danlu.kube.informer import Indexer, O
from danlu.kube.patch import json_patch, merge_patch
from danlu.kube.priorities import LOW_PRIORITY
from danlu.kube.resources import Resource, custom_resource
from danlu.kube.types import Manifest, Object, includes_fields
from danlu.training.names import SSH_AUTH_TYPE, SSH_PRIVATE_KEY, SSH_PUBLIC_KEY
from danlu.training.types import Job
from danlu.util.ssh_keys import generate_p521_keys

BatchTask = Callable[[], Awaitable[object]]
_MAX_BATCH = 64


class NameConflict(OutsideError):
    """An object of that name exists, but it is not the job's, or the job has given it up."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"{kind} {name} already exists and does not belong to this job",
            hint=f"rename the job, or delete that {kind}",
        )
        self.kind = kind


async def slow_start_batch(tasks: Sequence[BatchTask], *, still_needed: Callable[[], bool]) -> None:
    """Run tasks in batches of 2, 4, 8 … 64 at once, as the Job controller's slowStartBatch.

    Stops after a batch with an error and raises the first one, so that an exceeded quota is hit a
    few times and not a thousand. No batch starts that is not ``still_needed``.
    """
    size = 2
    while tasks and still_needed():
        errors: list[DanluError] = []
        async with anyio.create_task_group() as group:
            for task in tasks[:size]:
                group.start_soon(_collect_error, task, errors)
        if errors:
            raise errors[0]
        tasks, size = tasks[size:], min(2 * size, _MAX_BATCH)


async def _collect_error(task: BatchTask, errors: list[DanluError]) -> None:
    try:
        await task()
    except DanluError as error:
        errors.append(error)


class OwnedObjects(Generic[O]):
    """The objects of one kind that jobs own, created and deleted under expectations.

    Expectations are kept by the uid of the owner, so that of two jobs of the same name, one after
    the other, neither waits for what the other expected.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[O],
        indexer: Indexer[O],
        *,
        expectations: Expectations[str],
    ) -> None:
        self.indexer = indexer
        self.resource = resource
        self._client = client
        self._expectations = expectations

    def on_event(self, old: O | None, new: O | None) -> None:
        """Report what the cache shows to the expectations; an event handler of the informer."""
        for obj in (old, new):
            owner = obj.metadata.controller if obj is not None else None
            if obj is None or owner is None:
                continue
            self._expectations.observe_creation(owner.uid, self._expectation_key(obj.metadata.name))
            if new is None or obj.metadata.deletion_timestamp is not None:
                self._expectations.observe_deletion(owner.uid, obj.metadata.uid)

    def owned_by(self, uid: str) -> list[O]:
        """Return the objects that a job controls."""
        return [
            obj
            for obj in self.indexer.by_index("owner", uid)
            if (owner := obj.metadata.controller) and owner.uid == uid
        ]

    async def create(
        self,
        uid: str,
        manifest: Manifest,
        *,
        is_released: Callable[[str], bool] = lambda uid: False,
    ) -> None:
        """Create an object of the job ``uid``; succeed if it already exists and is the job's.

        ``is_released`` returns whether the job gave the object of a uid up. Raises
        :class:`NameConflict`.
        """
        name = manifest["metadata"]["name"]
        # Before the request: the watch may show the object before the response arrives, as
        # client-go's controllers must expect too.
        self._expectations.expect_creation(uid, [self._expectation_key(name)])
        try:
            await self._client.create(self.resource, manifest, priority=LOW_PRIORITY)
        except AlreadyExists:
            await self._check_existing(uid, manifest, is_released)
        except BaseException:
            # Nothing was created that the watch could show.
            self._expectations.observe_creation(uid, self._expectation_key(name))
            raise

    async def delete(self, uid: str, obj: O) -> None:
        """Delete exactly this object of the job ``uid``; succeed if it is already gone."""
        metadata = obj.metadata
        self._expectations.expect_deletion(uid, [metadata.uid])
        try:
            await self._client.delete(
                self.resource,
                metadata.name,
                namespace=metadata.namespace,
                # A precondition: a newer object of the same name stays.
                options=DeleteOptions(uid=metadata.uid),
            )
        except (NotFound, Conflict):
            self._expectations.observe_deletion(uid, metadata.uid)
        except BaseException:
            self._expectations.observe_deletion(uid, metadata.uid)
            raise

    async def _check_existing(
        self, uid: str, manifest: Manifest, is_released: Callable[[str], bool]
    ) -> None:
        """Accept the object that has the name if an earlier attempt of ours created it."""
        metadata = manifest["metadata"]
        expectation = self._expectation_key(metadata["name"])
        try:
            existing = await self._client.get(
                self.resource, metadata["name"], namespace=metadata["namespace"]
            )
        except BaseException:
            self._expectations.observe_creation(uid, expectation)
            raise
        cached = self.indexer.get(existing.key)
        if cached is not None and cached.metadata.uid == existing.metadata.uid:
            # The cache showed it before it was expected, so no event will fulfil the expectation.
            self._expectations.observe_creation(uid, expectation)
        if not _matches_manifest(existing, uid, manifest) or is_released(existing.metadata.uid):
            self._expectations.observe_creation(uid, expectation)
            raise NameConflict(self.resource.kind, metadata["name"])

    def _expectation_key(self, name: str) -> str:
        return f"{self.resource.plural}/{name}"


def _matches_manifest(obj: Object, uid: str, manifest: Manifest) -> bool:
    """Return whether an object is the job's, not being deleted, and has the manifest's labels."""
    owner = obj.metadata.controller
    labels = manifest["metadata"].get("labels") or {}
    return (
        owner is not None
        and owner.uid == uid
        and obj.metadata.deletion_timestamp is None
        and all(obj.metadata.labels.get(name) == value for name, value in labels.items())
    )


# -- objects that are not watched -----------------------------------------------------------------

_ObjectName = tuple[str, str]
#: Fields that are set on creation only, by kind and path.
_CREATION_ONLY = frozenset({("PodGroup", "spec", "queue")})
_NEVER_CORRECTED = frozenset({"apiVersion", "kind", "metadata", "status"})
#: Mappings that belong to the job as a whole: keys that it does not have are deleted.
_OWNED_MAPPINGS = frozenset({("ConfigMap", "data"), ("PodGroup", "spec", "minResources")})


@dataclass(slots=True)
class _LastApplied:
    """The manifest that was applied last, ``{}`` for none; ``correct`` if the object matches it."""

    manifest: bytes = b"{}"
    correct: bool = False


_DELETED = _LastApplied(correct=True)


class DependentObjects:
    """Creates, corrects and deletes the other objects of a job: ConfigMaps, RBAC, PodGroup, HPA.

    They are not watched. Once found correct, an object counts as correct until the job wants
    something else, or creates a pod that needs it. A Secret gets new keys of ssh when it is
    created, and is never changed.

    The job is not the only one that writes them: admission webhooks, administrators and other
    controllers do too. Only the fields that the job decides are corrected. Metadata and the queue
    of a PodGroup are set on creation and never touched again, as in Kubeflow (training-operator,
    pkg/controller.v1/common/job.go); fields that the job does not mention are kept.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._last_applied: dict[str, dict[_ObjectName, _LastApplied]] = {}

    def __len__(self) -> int:
        """Return the number of jobs with such objects."""
        return len(self._last_applied)

    async def create_or_patch(self, job: Job, manifest: Manifest, *, recheck: bool = False) -> None:
        """Create an object, or correct the fields of it that the job decides.

        ``recheck`` asks the server even if the object was correct before. Raises
        :class:`NameConflict` if the object is not the job's.
        """
        applied = self._last_applied.setdefault(job.uid, {}).setdefault(
            _object_name(manifest), _LastApplied()
        )
        encoded = msgspec.json.encode(manifest)
        if applied.correct and applied.manifest == encoded and not recheck:
            return
        applied.correct = False
        previous: Manifest = msgspec.json.decode(applied.manifest)
        resource = _resource_of(manifest)
        try:
            await self._client.create(resource, _add_keys(manifest), priority=LOW_PRIORITY)
        except AlreadyExists:
            if _is_key_secret(manifest):
                await self._check_owner(job, resource, manifest)
            # What has no owner outlives the job, and may be of an earlier one.
            elif manifest["metadata"].get("ownerReferences"):
                await self._patch_existing(job, resource, manifest, previous)
        applied.manifest, applied.correct = encoded, True

    async def delete(self, job: Job, manifest: Manifest) -> None:
        """Delete an object if it exists and is the job's."""
        applied = self._last_applied.setdefault(job.uid, {})
        key = _object_name(manifest)
        if applied.get(key) == _DELETED:
            return
        resource = _resource_of(manifest)
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        try:
            existing = await self._client.get(resource, name, namespace=namespace)
            if _controller_uid(existing) == job.uid:
                options = DeleteOptions(uid=existing["metadata"]["uid"])
                await self._client.delete(resource, name, namespace=namespace, options=options)
        except (NotFound, Conflict):
            pass
        applied[key] = _LastApplied(correct=True)

    def forget(self, uid: str) -> None:
        """Forget a job that no longer exists."""
        self._last_applied.pop(uid, None)

    async def _check_owner(
        self, job: Job, resource: Resource[Manifest], manifest: Manifest
    ) -> None:
        """Check that a Secret is the job's on the server: the operator may not read Secrets."""
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        uid = {"op": "test", "path": "/metadata/ownerReferences/0/uid", "value": job.uid}
        try:
            await self._client.patch(resource, name, json_patch([uid]), namespace=namespace)
        except Invalid as error:
            raise NameConflict(resource.kind, name) from error

    async def _patch_existing(
        self, job: Job, resource: Resource[Manifest], manifest: Manifest, previous: Manifest
    ) -> None:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        existing = await self._client.get(resource, name, namespace=namespace)
        if _controller_uid(existing) != job.uid:
            raise NameConflict(resource.kind, name)
        if patch := correction_patch(existing, manifest, previous):
            await self._client.patch(resource, name, merge_patch(patch), namespace=namespace)


def _is_key_secret(manifest: Manifest) -> bool:
    return bool(manifest.get("type") == SSH_AUTH_TYPE)


def _add_keys(manifest: Manifest) -> Manifest:
    """Return the manifest, with new keys if it is a Secret of keys."""
    if not _is_key_secret(manifest):
        return manifest
    pair = zip((SSH_PRIVATE_KEY, SSH_PUBLIC_KEY), generate_p521_keys(), strict=True)
    return {**manifest, "data": {name: b64encode(key).decode() for name, key in pair}}


def correction_patch(existing: Manifest, desired: Manifest, previous: Manifest) -> Manifest:
    """Return the merge patch (RFC 7396) that corrects ``existing``; empty if it is correct.

    ``previous`` is the manifest that was applied before: a field that is no longer desired is
    deleted if it still has the value that was applied.
    """
    fields = {name: value for name, value in desired.items() if name not in _NEVER_CORRECTED}
    before = {name: value for name, value in previous.items() if name not in _NEVER_CORRECTED}
    return _diff_fields((desired["kind"],), existing, fields, before)


def _diff_fields(
    path: tuple[str, ...],
    existing: Mapping[str, Any],
    desired: Mapping[str, Any],
    previous: Mapping[str, Any],
) -> Manifest:
    patch: Manifest = {
        name: None
        for name in existing
        if name not in desired
        and (*path, name) not in _CREATION_ONLY
        and (path in _OWNED_MAPPINGS or (name in previous and existing[name] == previous[name]))
    }
    for name, value in desired.items():
        if (*path, name) in _CREATION_ONLY:
            continue
        current, before = existing.get(name), previous.get(name)
        if isinstance(value, Mapping) and isinstance(current, Mapping):
            inner = before if isinstance(before, Mapping) else {}
            if nested := _diff_fields((*path, name), current, value, inner):
                patch[name] = nested
        elif not includes_fields(current, value):
            patch[name] = value
    return patch


def _object_name(manifest: Mapping[str, Any]) -> _ObjectName:
    return manifest["kind"], manifest["metadata"]["name"]


def _resource_of(manifest: Mapping[str, Any]) -> Resource[Manifest]:
    return custom_resource(manifest["apiVersion"], manifest["kind"], Manifest)


def _controller_uid(manifest: Mapping[str, Any]) -> str:
    owners = manifest["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")
