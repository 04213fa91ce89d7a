"""The ConfigMap of a job that holds what its replicas reported."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from danlu.errors import OutsideError, TemporaryError
from danlu.kube.client import Client, Deletion
from danlu.kube.failures import AlreadyExists, Conflict, Invalid, NotFound
from danlu.kube.patches import Patch, json_patch, merge_patch
from danlu.kube.resources import CONFIG_MAPS
from danlu.kube.types import Document, Key
from danlu.operator.reports.told import PROGRESS, Told
from danlu.training.cluster import REPORTS, reports_name
from danlu.training.document import API_VERSION
from danlu.util.recent import Recent

__all__ = ["Maps", "NameTaken", "Reporter"]

_log = logging.getLogger(__name__)
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Reporter:
    """The job that reports."""

    kind: str
    key: Key
    uid: str

    def owner(self) -> Document:
        """It as the owner of an object."""
        return {
            "apiVersion": API_VERSION,
            "kind": self.kind,
            "name": self.key.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


class NameTaken(OutsideError):
    """The name of a job's ConfigMap is somebody else's."""


class Maps:
    """Reads and writes them. One of an earlier job of the same name is ended when it is met."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ours: Recent[str, None] = Recent()

    async def read(self, job: Reporter) -> Document | None:
        """The job's, if there is one yet; raises :class:`NameTaken`."""
        name, namespace = reports_name(job.key.name), job.key.namespace
        try:
            found = await self._client.get(CONFIG_MAPS, name, namespace=namespace)
        except NotFound:
            self._ours.forget(job.uid)
            return None
        owners = found["metadata"].get("ownerReferences") or ()
        if any(one.get("uid") == job.uid for one in owners):
            self._ours.put(job.uid, None)
            return found
        if REPORTS not in (found["metadata"].get("labels") or {}):
            raise NameTaken(f"the ConfigMap {name} is there already and is somebody else's")
        how = Deletion(uid=found["metadata"]["uid"])
        try:
            await self._client.delete(CONFIG_MAPS, name, namespace=namespace, how=how)
        except (NotFound, Conflict):
            _log.debug("%s is gone already", name)
        return None

    async def write(self, job: Reporter, change: Document) -> None:
        """Merge a change into it, made where there is none; raises :class:`NameTaken`."""
        for _ in range(_TRIES):
            if job.uid not in self._ours:
                if await self._created(job, change):
                    return
                # Another of the operator's processes was faster, or it is another's.
                await self.read(job)
            try:
                await self._patch(job, merge_patch(change))
                return
            except NotFound:
                self._ours.forget(job.uid)
        raise TemporaryError(f"the ConfigMap {reports_name(job.key.name)} comes and goes")

    async def _created(self, job: Reporter, change: Document) -> bool:
        metadata: dict[str, Any] = {
            "name": reports_name(job.key.name),
            "namespace": job.key.namespace,
            "labels": {REPORTS: "true"},
            "ownerReferences": [job.owner()],
        }
        try:
            await self._client.create(
                CONFIG_MAPS, CONFIG_MAPS.document({"metadata": metadata, **change})
            )
        except AlreadyExists:
            return False
        self._ours.put(job.uid, None)
        return True

    async def replace(self, job: Reporter, known: Told, told: Told) -> bool:
        """Write what is told in place of ``known``; False where that is not what it has."""
        change = [
            {"op": "test", "path": f"/data/{PROGRESS}", "value": known.text},
            *(
                {"op": "add", "path": f"/data/{key}", "value": text}
                for key, text in told.data().items()
            ),
        ]
        try:
            await self._patch(job, json_patch(change))
        except (Invalid, NotFound):
            return False
        return True

    async def _patch(self, job: Reporter, patch: Patch) -> None:
        name, namespace = reports_name(job.key.name), job.key.namespace
        await self._client.patch(CONFIG_MAPS, name, patch, namespace=namespace)
