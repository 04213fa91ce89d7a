"""What the operator remembers and writes about jobs: statuses, metrics.

Everything here is keyed by the job's uid, and can be lost: it only bridges the time until the cache
shows what was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from prometheus_client import Counter, Histogram

from danlu.kube.client import Client
from danlu.kube.clock import REAL_CLOCK, Clock
from danlu.kube.core_v1 import Pod
from danlu.kube.informer import Indexer
from danlu.kube.metrics import MetricsRegistry
from danlu.kube.patch import merge_patch
from danlu.kube.resources import Resource
from danlu.kube.types import Key, Manifest, ObjectMeta
from danlu.kube.watch import ListOptions
from danlu.operator.job_formats import JobFormat
from danlu.operator.owned_objects import OwnedObjects
from danlu.operator.types import JobObject
from danlu.training.framework import Framework
from danlu.training.rendering import JOB_NAME
from danlu.training.types import ConditionType, Job, JobStatus

# -- the status -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _LastWrite:
    """The last write of a status; ``status`` is None once the cache shows it."""

    at: float
    version: str = ""
    status: JobStatus | None = None
    replaced: set[str] = field(default_factory=set)


class StatusCache:
    """The last status written for each job, until the informer's cache shows it.

    Deciding on an outdated status would repeat a decision: record an event twice, count a restart
    twice. So the last written status is used as long as the cache shows a version that it replaced.
    Versions are only compared for equality, as the Kubernetes API conventions require.
    """

    def __init__(self, *, clock: Clock = REAL_CLOCK) -> None:
        self._clock = clock
        self._last: dict[str, _LastWrite] = {}

    def __len__(self) -> int:
        """Return the number of jobs that were written."""
        return len(self._last)

    def latest(self, cached: ObjectMeta, status: JobStatus) -> tuple[str, JobStatus]:
        """Return the latest version and status: those of the cache, or those written since."""
        last = self._last.get(cached.uid)
        if last is None or last.status is None:
            return cached.resource_version, status
        if cached.resource_version in last.replaced:
            return last.version, last.status
        self._mark_current(last)
        return cached.resource_version, status

    def put(self, cached: ObjectMeta, *, over: str, version: str, status: JobStatus) -> None:
        """Remember a status that was written over one version and resulted in another."""
        last = self._last.setdefault(cached.uid, _LastWrite(0.0))
        last.at = self._clock.monotonic()
        last.replaced |= {cached.resource_version, over}
        last.version, last.status = version, status

    def is_own_write(self, cached: ObjectMeta) -> bool:
        """Return whether the cache shows exactly what was written last."""
        last = self._last.get(cached.uid)
        if last is None or last.status is None or cached.resource_version != last.version:
            return False
        self._mark_current(last)
        return True

    def seconds_since_write(self, uid: str) -> float:
        """Return the seconds since the last write, infinity if there was none."""
        last = self._last.get(uid)
        return float("inf") if last is None else self._clock.monotonic() - last.at

    def forget(self, uid: str) -> None:
        """Forget a job that no longer exists."""
        self._last.pop(uid, None)

    @staticmethod
    def _mark_current(last: _LastWrite) -> None:
        last.status = None
        last.replaced.clear()


class StatusWriter:
    """Writes the statuses of the jobs of one kind.

    A write is a merge patch with the ``resourceVersion`` as a precondition. If only the counts of
    replicas changed, it waits until ``seconds`` after the last write, as no decision depends on
    them.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[JobObject],
        framework: Framework,
        *,
        job_format: JobFormat,
        cache: StatusCache,
        metrics: JobMetrics,
        seconds: float,
    ) -> None:
        self._client = client
        self._resource = resource
        self._framework = framework
        self._job_format = job_format
        self._cache = cache
        self._metrics = metrics
        self._seconds = seconds

    async def write(
        self,
        job: JobObject,
        old: JobStatus,
        new: JobStatus,
        *,
        decoded: Job | None = None,
        over: str,
        now: datetime,
    ) -> float | None:
        """Replace the status ``old`` of the version ``over`` by ``new``.

        ``decoded`` is the same job, None if it is invalid.

        Returns the seconds to wait if the write was put off. Raises
        :class:`~danlu.kube.errors.Conflict` if the job has changed.
        """
        if new == old:
            return None
        wait = self._seconds - self._cache.seconds_since_write(job.metadata.uid)
        if wait > 0 and _differs_in_counts_only(old, new):
            return wait
        new = msgspec.structs.replace(new, last_reconcile_time=now)
        change = merge_patch_diff(
            self._job_format.write_status(old, decoded),
            self._job_format.write_status(new, decoded),
        )
        patch = merge_patch({"metadata": {"resourceVersion": over}, "status": change})
        key = job.key
        written = await self._client.patch(
            self._resource, key.name, patch, namespace=key.namespace, subresource="status"
        )
        version = written.metadata.resource_version
        self._cache.put(job.metadata, over=over, version=version, status=new)
        self._metrics.record_status(key.namespace, self._framework, old=old, new=new)
        return None


def _differs_in_counts_only(old: JobStatus, new: JobStatus) -> bool:
    return msgspec.structs.replace(new, replica_statuses=old.replica_statuses) == old


def merge_patch_diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> Manifest:
    """Return the merge patch (RFC 7396) that turns ``old`` into ``new``; empty if equal."""
    patch: Manifest = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := merge_patch_diff(before, value):
                patch[name] = inner
        elif name not in old or before != value:
            patch[name] = value
    return patch


# -- pods that the cache does not show ------------------------------------------------------------


class DeletedPods:
    """Distinguishes pods that were deleted from pods that the cache does not show yet.

    Jobs and pods come from different watches. An operator that takes over may see the status that
    its predecessor wrote a moment ago, but not yet the pods that it mentions. If those counted as
    lost, they would be counted as restarts, and running pods would be deleted.
    """

    def __init__(
        self, client: Client, jobs: Indexer[JobObject], *, pods: OwnedObjects[Pod]
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._pods = pods
        self._deleted: dict[str, set[str]] = {}

    def __len__(self) -> int:
        """Return the number of jobs with deleted pods."""
        return len(self._deleted)

    def on_event(self, old: Pod | None, new: Pod | None) -> None:
        """Note the deletion of a pod; an event handler of the informer."""
        owner = old.metadata.controller if old is not None and new is None else None
        if old is None or owner is None:
            return
        job = self._jobs.get(Key(old.metadata.namespace, owner.name))
        if job is not None and job.metadata.uid == owner.uid:
            self._deleted.setdefault(owner.uid, set()).add(old.metadata.uid)

    async def is_cache_stale(self, job: Job, pods: Sequence[Pod]) -> bool:
        """Return whether a pod in the job's status exists but is not among ``pods``.

        Asks the server only if a pod is missing whose deletion was not seen.
        """
        known = {pod.metadata.uid for pod in pods} | self._deleted.get(job.uid, set())
        missing = {
            record.current
            for record in job.status.records.values()
            if record.current
            and record.current not in known
            and not (record.completed or record.failed)
        }
        if not missing:
            return False
        options = ListOptions(job.namespace, labels=f"{JOB_NAME}={job.name}")
        existing = await self._client.list(self._pods.resource, options)
        return any(
            pod.metadata.uid in missing
            # A pod that was released meanwhile is no longer the job's.
            and (owner := pod.metadata.controller) is not None
            and owner.uid == job.uid
            for pod in existing.items
        )

    def clear(self, uid: str) -> None:
        """Forget the deleted pods of a job whose status no longer mentions them."""
        self._deleted.pop(uid, None)


# -- metrics --------------------------------------------------------------------------------------


class JobMetrics:
    """``training_operator_jobs_{created,deleted,successful,failed,restarted}_total`` (Kubeflow's).

    They count what is written into statuses, so an operator that restarts does not count its jobs
    again, as Kubeflow's does. ``danlu_job_seconds`` is the time from a job's start to its end.
    """

    def __init__(self, registry: MetricsRegistry) -> None:
        def counter(name: str, help: str) -> Counter:
            return Counter(name, help, ["job_namespace", "framework"], registry=registry)

        self._created = counter("training_operator_jobs_created_total", "Created jobs")
        self._deleted = counter("training_operator_jobs_deleted_total", "Deleted jobs")
        self._successful = counter("training_operator_jobs_successful_total", "Successful jobs")
        self._failed = counter("training_operator_jobs_failed_total", "Failed jobs")
        self._restarted = counter("training_operator_jobs_restarted_total", "Restarts of replicas")
        self._seconds = Histogram(
            "danlu_job_seconds",
            "Time from a job's start to its end",
            ["framework"],
            buckets=(1, 10, 60, 600, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600),
            registry=registry,
        )

    def record_status(
        self, namespace: str, framework: Framework, *, old: JobStatus, new: JobStatus
    ) -> None:
        """Count what changed from one written status to the next."""
        labels = (namespace, framework.name)
        for condition, counter in (
            (ConditionType.CREATED, self._created),
            (ConditionType.SUCCEEDED, self._successful),
            (ConditionType.FAILED, self._failed),
        ):
            if new.has_condition(condition) and not old.has_condition(condition):
                counter.labels(*labels).inc()
        restarts = _total_restarts(new) - _total_restarts(old)
        if restarts > 0:
            self._restarted.labels(*labels).inc(restarts)
        if new.finished and not old.finished and new.start_time and new.completion_time:
            seconds = (new.completion_time - new.start_time).total_seconds()
            self._seconds.labels(framework.name).observe(seconds)

    def record_deletion(self, namespace: str, framework: Framework) -> None:
        """Count a deleted job."""
        self._deleted.labels(namespace, framework.name).inc()


def _total_restarts(status: JobStatus) -> int:
    return status.restarts + sum(record.restarts for record in status.records.values())
