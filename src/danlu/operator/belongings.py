"""Further objects of a job (files, rights, gangs, autoscalers): there, and as they are to be.

They are not followed: what was found right once is taken to be so until the job asks for something
else, or makes a pod that needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from danlu.kube.client import Client, Deletion
from danlu.kube.failures import AlreadyExists, Conflict, NotFound
from danlu.kube.patches import merge_patch
from danlu.kube.resources import Resource
from danlu.kube.types import Document
from danlu.operator.writing import NameTaken
from danlu.training.types import Job

__all__ = ["Belongings"]

Name = tuple[str, str]


class Belongings:
    """Makes, changes and removes objects by document, and remembers what it did of each job."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, dict[Name, bytes]] = {}

    def __len__(self) -> int:
        """Of how many jobs something is remembered."""
        return len(self._known)

    async def ensure(self, job: Job, document: Document, *, again: bool = False) -> None:
        """Have the object as ``document`` says, fields that it does not name aside.

        ``again`` looks though it was so. Raises :class:`NameTaken` where it is not the job's.
        """
        known = self._known.setdefault(job.uid, {})
        name, wanted = _name(document), msgspec.json.encode(document)
        if known.get(name) == wanted and not again:
            return
        known.pop(name, None)
        resource = _resource(document)
        try:
            await self._client.create(resource, document)
        except AlreadyExists:
            await self._correct(job, resource, document)
        known[name] = wanted

    async def remove(self, job: Job, document: Document) -> None:
        """Have the object no more."""
        known = self._known.setdefault(job.uid, {})
        name = _name(document)
        if known.get(name) == b"":
            return
        resource, metadata = _resource(document), document["metadata"]
        try:
            found = await self._client.get(
                resource, metadata["name"], namespace=metadata["namespace"]
            )
            if _controller(found) == job.uid:
                how = Deletion(uid=found["metadata"]["uid"])
                await self._client.delete(
                    resource, metadata["name"], namespace=metadata["namespace"], how=how
                )
        except (NotFound, Conflict):
            pass
        known[name] = b""

    def forget(self, uid: str) -> None:
        """The job is no more."""
        self._known.pop(uid, None)

    async def _correct(self, job: Job, resource: Resource[Document], document: Document) -> None:
        metadata = document["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        there = await self._client.get(resource, name, namespace=namespace)
        if _controller(there) != job.uid:
            raise NameTaken(resource.kind, name)
        if not _says(there, document):
            patch = merge_patch({**document, "metadata": _plain_metadata(metadata)})
            await self._client.patch(resource, name, patch, namespace=namespace)


def _name(document: Mapping[str, Any]) -> Name:
    return document["kind"], document["metadata"]["name"]


def _resource(document: Mapping[str, Any]) -> Resource[Document]:
    group, _, version = document["apiVersion"].rpartition("/")
    kind = document["kind"]
    return Resource(group, version, f"{kind.lower()}s", kind, Document)


def _controller(there: Mapping[str, Any]) -> str:
    owners = there["metadata"].get("ownerReferences") or ()
    return next((str(one["uid"]) for one in owners if one.get("controller")), "")


def _plain_metadata(metadata: Mapping[str, Any]) -> Document:
    return {name: metadata[name] for name in ("labels", "annotations") if name in metadata}


def _says(there: Any, wanted: Any) -> bool:
    """Whether all of ``wanted`` is so; what servers add is no matter."""
    if isinstance(wanted, Mapping):
        return isinstance(there, Mapping) and all(
            _says(there.get(name), value) for name, value in wanted.items()
        )
    if isinstance(wanted, list) and isinstance(there, list):
        return len(there) == len(wanted) and all(map(_says, there, wanted))
    return bool(there == wanted)
