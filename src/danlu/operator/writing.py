"""Writing to the cluster, one object or many, so that doing it again does no harm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import anyio

from danlu.errors import DanluError, OutsideError
from danlu.kube.client import Client, Deletion
from danlu.kube.expectations import Expectations
from danlu.kube.failures import AlreadyExists, Conflict, NotFound
from danlu.kube.resources import Resource
from danlu.kube.store import Store
from danlu.kube.types import Document, Object

__all__ = ["Children", "NameTaken", "difference", "slow_start"]

O = TypeVar("O", bound=Object)  # noqa: E741 - an object
Task = Callable[[], Awaitable[object]]
_MOST = 64


class NameTaken(OutsideError):
    """An object of that name is there which is not this job's, or one that it gave up."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"{kind} {name} is there already, and is none that this job has",
            hint=f"rename the job, or remove that {kind}",
        )
        self.kind = kind


async def slow_start(tasks: Sequence[Task], *, still: Callable[[], bool]) -> None:
    """Carry tasks out at once: two, then twice as many while they succeed, 64 at most.

    Raises the first error of a round when the round is over; what comes after it is not tried. So
    a quota that is used up is asked a few times, not a thousand. No round begins that is not
    ``still`` wanted.
    """
    size = 2
    while tasks and still():
        errors: list[DanluError] = []
        async with anyio.create_task_group() as group:
            for task in tasks[:size]:
                group.start_soon(_kept, task, errors)
        if errors:
            raise errors[0]
        tasks, size = tasks[size:], min(2 * size, _MOST)


async def _kept(task: Task, errors: list[DanluError]) -> None:
    try:
        await task()
    except DanluError as error:
        errors.append(error)


class Children(Generic[O]):
    """The objects of one kind that jobs own: made and deleted, and expected to be seen so.

    Expectations are those of the owner's uid, so that of two jobs of one name, the second after
    the first, neither waits for what was the other's.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[O],
        store: Store[O],
        *,
        expectations: Expectations[str],
    ) -> None:
        self.store = store
        self.resource = resource
        self._client = client
        self._expectations = expectations

    def seen(self, old: O | None, new: O | None) -> None:
        """What the cache has come to show is expected no longer; a handler of its informer."""
        for one in (old, new):
            owner = one.metadata.controller if one is not None else None
            if one is None or owner is None:
                continue
            self._expectations.created(owner.uid, self._word(one.metadata.name))
            if new is None or one.metadata.deletion_timestamp is not None:
                self._expectations.deleted(owner.uid, one.metadata.uid)

    def of(self, uid: str) -> list[O]:
        """Those that a job controls."""
        found = self.store.by("owner", uid)
        return [one for one in found if (owner := one.metadata.controller) and owner.uid == uid]

    async def create(
        self, uid: str, document: Document, *, past: Callable[[str], bool] = lambda uid: False
    ) -> None:
        """Make an object of the job ``uid``; one that is there already is as good, if it is that.

        ``past`` says of a uid that the job gave that object up. Raises :class:`NameTaken`.
        """
        name = document["metadata"]["name"]
        self._expectations.expect_creation(uid, [self._word(name)])
        try:
            await self._client.create(self.resource, document)
        except AlreadyExists:
            await self._already(uid, document, past)
        except BaseException:
            self._expectations.created(uid, self._word(name))
            raise

    async def delete(self, uid: str, obj: O) -> None:
        """Ask for the end of this very object of the job ``uid``; gone already is as good."""
        metadata = obj.metadata
        self._expectations.expect_deletion(uid, [metadata.uid])
        try:
            await self._client.delete(
                self.resource,
                metadata.name,
                namespace=metadata.namespace,
                how=Deletion(uid=metadata.uid),
            )
        except (NotFound, Conflict):
            self._expectations.deleted(uid, metadata.uid)
        except BaseException:
            self._expectations.deleted(uid, metadata.uid)
            raise

    async def _already(self, uid: str, document: Document, past: Callable[[str], bool]) -> None:
        """Judge the object that has the name: an earlier try of ours, or somebody else's."""
        metadata = document["metadata"]
        word = self._word(metadata["name"])
        try:
            there = await self._client.get(
                self.resource, metadata["name"], namespace=metadata["namespace"]
            )
        except BaseException:
            self._expectations.created(uid, word)
            raise
        shown = self.store.get(there.key)
        if shown is not None and shown.metadata.uid == there.metadata.uid:
            # It was seen before it was expected.
            self._expectations.created(uid, word)
        if not _is_that(there, uid, document) or past(there.metadata.uid):
            self._expectations.created(uid, word)
            raise NameTaken(self.resource.kind, metadata["name"])

    def _word(self, name: str) -> str:
        return f"{self.resource.plural}/{name}"


def _is_that(there: Object, uid: str, document: Document) -> bool:
    """Whether it is the job's, lives, and will be found by the labels that it is to have."""
    owner = there.metadata.controller
    labels = document["metadata"].get("labels") or {}
    return (
        owner is not None
        and owner.uid == uid
        and there.metadata.deletion_timestamp is None
        and all(there.metadata.labels.get(name) == value for name, value in labels.items())
    )


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Document:
    """The merge patch (RFC 7396) that makes ``new`` of ``old``; empty where they are the same."""
    changed: Document = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if below := difference(before, value):
                changed[name] = below
        elif name not in old or before != value:
            changed[name] = value
    return changed
