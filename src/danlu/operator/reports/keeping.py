"""What replicas reported, kept in a ConfigMap of their job."""

from __future__ import annotations

import base64
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup

from danlu.errors import DanluError, OutsideError, TemporaryError
from danlu.kube.client import Client, Deletion
from danlu.kube.clock import sleep
from danlu.kube.failures import AlreadyExists, Conflict, NotFound
from danlu.kube.patches import merge_patch
from danlu.kube.resources import CONFIG_MAPS
from danlu.kube.types import Document, Key
from danlu.training.cluster import REPORTS, reports_name
from danlu.training.document import API_VERSION
from danlu.training.progress import Progress

__all__ = ["MOST", "Keeper", "NameTaken", "Reporter", "TooMuch"]

MOST = 700 << 10
"""Bytes of all values of a job together: a ConfigMap takes a mebibyte, in base64."""

_log = logging.getLogger(__name__)
_PAUSE = 1.0
_REMEMBERED = 4096
_TRIES = 5


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


class TooMuch(ValueError):
    """What a job's replicas reported is more than its ConfigMap takes."""


class NameTaken(OutsideError):
    """The name of a job's ConfigMap is somebody else's."""


class Keeper:
    """Writes reports: progress at most once a second a job, the newest; values at once.

    :meth:`run` must run meanwhile.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._group: TaskGroup | None = None
        self._newest: dict[str, Progress] = {}
        self._writing: set[str] = set()
        self._ours: OrderedDict[str, None] = OrderedDict()
        self._turns: dict[str, anyio.Lock] = {}

    async def run(self) -> None:
        """Write until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            await anyio.sleep_forever()

    def progress(self, job: Reporter, progress: Progress) -> None:
        """Keep how far a job is, soon."""
        self._newest[job.uid] = progress
        if job.uid not in self._writing and self._group is not None:
            self._writing.add(job.uid)
            self._group.start_soon(self._write_progress, job)

    async def put(self, job: Reporter, name: str, value: bytes) -> None:
        """Keep ``value`` under ``name`` (``value.worker-0``), in place of an earlier one.

        Raises :class:`TooMuch`, :class:`NameTaken`, and what the API server refuses.
        """
        turn = self._turns.setdefault(job.uid, anyio.Lock())
        try:
            async with turn:
                there = await self._there(job)
                kept = (there or {}).get("binaryData") or {}
                others = sum(len(text) * 3 // 4 for key, text in kept.items() if key != name)
                if others + len(value) > MOST:
                    raise TooMuch(name)
                encoded = base64.b64encode(value).decode()
                await self._write(job, {"binaryData": {name: encoded}})
        finally:
            if not turn.statistics().tasks_waiting:
                self._turns.pop(job.uid, None)

    # -- writing ----------------------------------------------------------------------------------

    async def _write_progress(self, job: Reporter) -> None:
        tries = _TRIES
        try:
            while (newest := self._newest.pop(job.uid, None)) is not None:
                text = msgspec.json.encode(newest).decode()
                try:
                    await self._write(job, {"data": {"progress": text}})
                    tries = _TRIES
                except TemporaryError as error:
                    tries -= 1
                    if tries:
                        self._newest.setdefault(job.uid, newest)
                    _log.info("progress of %s: %s", job.key, error)
                except DanluError as error:
                    _log.warning("progress of %s: %s", job.key, error)
                await sleep(self._client.clock, _PAUSE)
        finally:
            self._writing.discard(job.uid)

    async def _write(self, job: Reporter, change: Document) -> None:
        name, namespace = reports_name(job.key.name), job.key.namespace
        if job.uid not in self._ours:
            await self._there(job)
        if job.uid in self._ours:
            try:
                await self._client.patch(
                    CONFIG_MAPS, name, merge_patch(change), namespace=namespace
                )
                return
            except NotFound:
                self._ours.pop(job.uid, None)
        metadata: dict[str, Any] = {"name": name, "namespace": namespace}
        metadata |= {"labels": {REPORTS: "true"}, "ownerReferences": [job.owner()]}
        try:
            await self._client.create(
                CONFIG_MAPS, CONFIG_MAPS.document({"metadata": metadata, **change})
            )
        except AlreadyExists:
            # Another of the operator's processes was faster.
            await self._client.patch(CONFIG_MAPS, name, merge_patch(change), namespace=namespace)
        self._remember(job.uid)

    async def _there(self, job: Reporter) -> Document | None:
        """The job's ConfigMap as it is; that of an earlier job of its name is ended."""
        name, namespace = reports_name(job.key.name), job.key.namespace
        try:
            found = await self._client.get(CONFIG_MAPS, name, namespace=namespace)
        except NotFound:
            self._ours.pop(job.uid, None)
            return None
        owners = found["metadata"].get("ownerReferences") or ()
        if any(one.get("uid") == job.uid for one in owners):
            self._remember(job.uid)
            return found
        if REPORTS not in (found["metadata"].get("labels") or {}):
            raise NameTaken(f"the ConfigMap {name} is there already and is somebody else's")
        how = Deletion(uid=found["metadata"]["uid"])
        try:
            await self._client.delete(CONFIG_MAPS, name, namespace=namespace, how=how)
        except (NotFound, Conflict):
            _log.debug("%s is gone already", name)
        return None

    def _remember(self, uid: str) -> None:
        self._ours[uid] = None
        self._ours.move_to_end(uid)
        if len(self._ours) > _REMEMBERED:
            self._ours.popitem(last=False)
