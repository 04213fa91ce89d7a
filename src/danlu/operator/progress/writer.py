"""Write reports and results into the ConfigMap of their job."""

from __future__ import annotations

import base64
import logging
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import TaskGroup

from danlu.errors import DanluError, TemporaryError
from danlu.kube.client import Client, DeleteOptions
from danlu.kube.clock import sleep
from danlu.kube.errors import AlreadyExists, Conflict, Invalid, NotFound
from danlu.kube.patch import Patch, json_patch, merge_patch
from danlu.kube.resources import CONFIG_MAPS, Resource
from danlu.kube.types import Key, Manifest
from danlu.operator.builders import owner_reference
from danlu.operator.owned_objects import NameConflict
from danlu.operator.progress.report import PROGRESS_KEY, ProgressReport
from danlu.training.names import (
    MAX_RESULT_BYTES,
    REPORTS_ANNOTATION,
    reports_config_map_name,
)
from danlu.training.registry import TRAIN_JOB
from danlu.util.lru import LRUCache

_log = logging.getLogger(__name__)
_WRITE_INTERVAL_SECONDS = 1.0
_MAX_TRIES = 5
_MAX_WRITE_TRIES = 3


@dataclass(frozen=True, slots=True)
class ReportingJob:
    """A job that sends reports."""

    resource: Resource[Any]
    key: Key
    uid: str


class ReportTooLarge(ValueError):
    """The results of a job do not fit into its ConfigMap."""


class ReportWriter:
    """Writes the latest progress of a job at most once a second, and results at once.

    If several replicas report progress, only the first :class:`ReportSource` counts, even if
    another process of the operator receives the reports of the others. :meth:`run` must be running.
    """

    def __init__(self, client: Client) -> None:
        self._clock = client.clock
        self._client = client
        self._config_maps = ReportConfigMaps(client)
        self._group: TaskGroup | None = None
        self._pending: dict[str, ProgressReport] = {}
        # Reports that are being written. Those that arrive meanwhile continue their history.
        self._in_flight: dict[str, ProgressReport] = {}
        self._writing: set[str] = set()
        # What the ConfigMap of each job contains, as far as this process knows.
        self._stored: LRUCache[str, ProgressReport] = LRUCache()
        self._locks: dict[str, anyio.Lock] = {}

    async def run(self) -> None:
        """Write until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            await anyio.sleep_forever()

    def submit_progress(self, job: ReportingJob, report: ProgressReport) -> None:
        """Queue a report to be written soon."""
        before = (
            self._pending.get(job.uid) or self._in_flight.get(job.uid) or self._stored.get(job.uid)
        )
        if before is not None and before.source < report.source:
            return
        self._pending[job.uid] = report if before is None else report.merge_history(before)
        if job.uid not in self._writing and self._group is not None:
            self._writing.add(job.uid)
            self._group.start_soon(self._write_progress, job)

    async def write_result(self, job: ReportingJob, name: str, value: bytes) -> None:
        """Store ``value`` under ``name`` (``value.worker-0``), replacing an earlier one.

        Raises:
            ReportTooLarge: All results of the job together exceed the limit.
            NameConflict: The name of the ConfigMap is in use.
        """
        lock = self._locks.setdefault(job.uid, anyio.Lock())
        try:
            async with lock:
                existing = await self._config_maps.read(job)
                stored = (existing or {}).get("binaryData") or {}
                # Base64 has 4 characters for 3 bytes.
                others = sum(len(text) * 3 // 4 for key, text in stored.items() if key != name)
                if others + len(value) > MAX_RESULT_BYTES:
                    raise ReportTooLarge(name)
                encoded = base64.b64encode(value).decode()
                await self._config_maps.write(job, {"binaryData": {name: encoded}})
        finally:
            if not lock.statistics().tasks_waiting:
                self._locks.pop(job.uid, None)

    async def _write_progress(self, job: ReportingJob) -> None:
        tries = _MAX_TRIES
        try:
            while (report := self._pending.pop(job.uid, None)) is not None:
                self._in_flight[job.uid] = report
                try:
                    await self._write_report(job, report)
                    tries = _MAX_TRIES
                except TemporaryError as error:
                    tries -= 1
                    if tries:
                        self._pending.setdefault(job.uid, report)
                    _log.info("progress of %s: %s", job.key, error)
                except DanluError as error:
                    _log.warning("progress of %s: %s", job.key, error)
                finally:
                    del self._in_flight[job.uid]
                await sleep(self._clock, _WRITE_INTERVAL_SECONDS)
        finally:
            self._writing.discard(job.uid)

    async def _write_report(self, job: ReportingJob, report: ProgressReport) -> None:
        """Write a report, unless another process wrote a newer or a more important one.

        As long as no other process writes, that is one request.
        """
        for _ in range(_MAX_TRIES):
            stored = self._stored.get(job.uid)
            if stored is None:
                existing = await self._config_maps.read(job)
                stored = ProgressReport.from_data((existing or {}).get("data") or {})
                if stored is not None and not report.supersedes(stored):
                    self._stored.put(job.uid, stored)
                    return
                report = report if stored is None else report.merge_history(stored)
            elif stored.source < report.source:
                return
            if stored is None:
                await self._config_maps.write(job, {"data": report.to_data()})
            elif not await self._config_maps.replace(job, stored, report):
                self._stored.discard(job.uid)
                continue
            self._stored.put(job.uid, report)
            await self._publish_status(job, report)
            return

    async def _publish_status(self, job: ReportingJob, report: ProgressReport) -> None:
        """Write a report to the status of a TrainJob, where its clients read it."""
        if job.resource.api_version != TRAIN_JOB.api_version:
            return
        status = {"trainerStatus": report.to_trainer_status()}
        # The uid is a precondition: a later job of this name has not reported this.
        patch = merge_patch({"metadata": {"uid": job.uid}, "status": status})
        key = job.key
        await self._client.patch(
            job.resource, key.name, patch, namespace=key.namespace, subresource="status"
        )


class ReportConfigMaps:
    """Reads and writes the ConfigMaps; deletes one that an earlier job of the same name left."""

    def __init__(self, client: Client) -> None:
        self._client = client
        # The uids of jobs whose ConfigMap is known to exist.
        self._existing: LRUCache[str, None] = LRUCache()

    async def read(self, job: ReportingJob) -> Manifest | None:
        """Return the job's ConfigMap, or None; raises :class:`NameConflict`."""
        name, namespace = reports_config_map_name(job.key.name), job.key.namespace
        try:
            existing = await self._client.get(CONFIG_MAPS, name, namespace=namespace)
        except NotFound:
            self._existing.discard(job.uid)
            return None
        metadata = existing["metadata"]
        if any(owner.get("uid") == job.uid for owner in metadata.get("ownerReferences") or ()):
            self._existing.put(job.uid, None)
            return existing
        if REPORTS_ANNOTATION not in (metadata.get("labels") or {}):
            raise NameConflict("ConfigMap", name)
        options = DeleteOptions(uid=metadata["uid"])
        try:
            await self._client.delete(CONFIG_MAPS, name, namespace=namespace, options=options)
        except (NotFound, Conflict):
            _log.debug("ConfigMap %s is already deleted", name)
        return None

    async def write(self, job: ReportingJob, change: Manifest) -> None:
        """Merge a change into the ConfigMap, or create it; raises :class:`NameConflict`."""
        for _ in range(_MAX_WRITE_TRIES):
            if job.uid not in self._existing:
                if await self._create_config_map(job, change):
                    return
                # Another process of the operator created it, or it is not the job's.
                await self.read(job)
            try:
                await self._patch_config_map(job, merge_patch(change))
                return
            except NotFound:
                self._existing.discard(job.uid)
        name = reports_config_map_name(job.key.name)
        raise TemporaryError(f"ConfigMap {name} is deleted again and again")

    async def replace(
        self, job: ReportingJob, stored: ProgressReport, report: ProgressReport
    ) -> bool:
        """Replace a report; return False if the ConfigMap no longer contains ``stored``."""
        operations = [
            {"op": "test", "path": f"/data/{PROGRESS_KEY}", "value": stored.text},
            *(
                {"op": "add", "path": f"/data/{key}", "value": text}
                for key, text in report.to_data().items()
            ),
        ]
        try:
            await self._patch_config_map(job, json_patch(operations))
        except (Invalid, NotFound):
            return False
        return True

    async def _create_config_map(self, job: ReportingJob, data: Manifest) -> bool:
        kind = job.resource
        owner = owner_reference(kind.api_version, kind.kind, job.key.name, job.uid)
        metadata: dict[str, Any] = {
            "name": reports_config_map_name(job.key.name),
            "namespace": job.key.namespace,
            "labels": {REPORTS_ANNOTATION: "true"},
            "ownerReferences": [owner],
        }
        manifest = CONFIG_MAPS.to_manifest({"metadata": metadata, **data})
        try:
            await self._client.create(CONFIG_MAPS, manifest)
        except AlreadyExists:
            return False
        self._existing.put(job.uid, None)
        return True

    async def _patch_config_map(self, job: ReportingJob, patch: Patch) -> None:
        name, namespace = reports_config_map_name(job.key.name), job.key.namespace
        await self._client.patch(CONFIG_MAPS, name, patch, namespace=namespace)
