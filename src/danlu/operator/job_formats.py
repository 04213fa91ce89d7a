"""How jobs of each API of Kubeflow are read from the cluster, and their status is written.

Jobs of ``kubeflow.org/v1`` have their templates, and a status with all that decisions need. A
TrainJob (``trainer.kubeflow.org/v1alpha1``) has a runtime, and a status that clients read in their
own way (the SDK takes any condition but those of Kubeflow Trainer for the end of the job). Names
and labels of pods are the framework's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import msgspec

from danlu.errors import TemporaryError
from danlu.kube.client import Client
from danlu.kube.errors import AlreadyExists, NotFound
from danlu.kube.resources import CONFIG_MAPS
from danlu.kube.types import Manifest
from danlu.operator.builders import owner_reference
from danlu.operator.owned_objects import NameConflict
from danlu.operator.types import JobObject, runtime_resource
from danlu.training.document import ManifestError
from danlu.training.framework import Framework
from danlu.training.frameworks.train_job import API_GROUP
from danlu.training.manifest import drop_empty, read_job, read_status, status_to_manifest
from danlu.training.names import SNAPSHOT_KEY, STATUS_FIELD, runtime_snapshot_name
from danlu.training.registry import TRAIN_JOB
from danlu.training.train_job.reader import (
    outline_train_job,
    read_train_job,
    validate_runtime,
)
from danlu.training.train_job.schema import API_VERSION, MANAGERS, RUNTIME_KINDS
from danlu.training.train_job.status import CONDITIONS, read_train_job_status
from danlu.training.types import (
    ConditionType,
    Job,
    JobCondition,
    JobStatus,
    ReplicaType,
)
from danlu.util.yaml_with_lines import read_yaml

RUNTIME_NOT_SUPPORTED = "TrainingRuntimeNotSupported"


class MissingRuntime(TemporaryError):
    """The runtime of a TrainJob does not exist, or not yet."""


class UnsupportedRuntime(ManifestError):
    """A TrainJob's runtime is invalid, or one that the operator does not run."""


class JobFormat(Protocol):
    """How the jobs of one kind are read, and what their status looks like."""

    async def read_job(self, obj: JobObject) -> Job:
        """Return the job without its status; raises :class:`ManifestError` if it is invalid."""

    def find_manager(self, spec: Mapping[str, Any]) -> object:
        """Return the ``managedBy`` of a spec that may be invalid, a false value for danlu's own."""

    def read_status(self, document: Mapping[str, Any]) -> JobStatus:
        """Return the status; raises :class:`ManifestError` if it is invalid."""

    def write_status(self, status: JobStatus, job: Job | None) -> Manifest:
        """Return the ``status`` of a manifest; ``job`` is None if it cannot be read."""


def choose_job_format(framework: Framework, client: Client) -> JobFormat:
    """Return the format of a framework's kind."""
    return TrainJobs(client) if framework is TRAIN_JOB else KubeflowJobs(framework)


def job_manifest(obj: JobObject, framework: Framework) -> dict[str, Any]:
    """Return the manifest of a job without its status."""
    return {
        "apiVersion": framework.api_version,
        "kind": framework.kind,
        "metadata": msgspec.to_builtins(obj.metadata),
        "spec": msgspec.json.decode(obj.spec),
    }


class KubeflowJobs:
    """The kinds of ``kubeflow.org``, and those of packages."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework

    async def read_job(self, obj: JobObject) -> Job:
        """Return the job that the manifest describes."""
        return read_job(job_manifest(obj, self._framework), self._framework)

    def find_manager(self, spec: Mapping[str, Any]) -> object:
        """Return ``runPolicy.managedBy``."""
        policy = spec.get("runPolicy")
        manager = policy.get("managedBy") if isinstance(policy, Mapping) else None
        return None if manager == self._framework.manager else manager

    def read_status(self, document: Mapping[str, Any]) -> JobStatus:
        """Return the status unchanged."""
        return read_status(document)

    def write_status(self, status: JobStatus, job: Job | None) -> Manifest:
        """Return the status unchanged."""
        return status_to_manifest(status)


# -- TrainJobs ------------------------------------------------------------------------------------

_RESUMED, _MAX_RESTARTS = "Resumed", "ReachedMaxRestarts"


class TrainJobs:
    """TrainJobs with the runtime that they started with.

    As in Kubeflow Trainer 2.3, a ConfigMap keeps that runtime, so later edits do not touch the job
    (``pkg/runtime/core/snapshot.go``). ``status.danlu`` has what decisions need.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read_job(self, obj: JobObject) -> Job:
        """Return the job with its runtime's templates.

        Of a job for which nothing is left to do, the runtime is not read. Raises
        :class:`MissingRuntime`, and :class:`NameConflict` if the snapshot's name is taken.
        """
        document = job_manifest(obj, TRAIN_JOB)
        manager = self.find_manager(document["spec"])
        # Without replicas, if another controller or nobody runs it any more.
        idle = msgspec.structs.replace(outline_train_job(document), replicas={})
        if manager or obj.metadata.deletion_timestamp is not None:
            return idle
        reference = document["spec"].get("runtimeRef") or {}
        if not isinstance(reference, Mapping):
            reference = {}
        # A job without a status has no snapshot yet, unless the operator was killed just then.
        is_new = not msgspec.json.decode(obj.status)
        snapshot = None if is_new else await self._find_snapshot(obj)
        if snapshot is None and self._has_ended(obj):
            return idle
        runtime = snapshot or await self._take_snapshot(obj, reference)
        try:
            validate_runtime(runtime)
        except ManifestError as error:
            raise UnsupportedRuntime(error.message, findings=error.findings) from error
        return read_train_job(document, [runtime])

    def find_manager(self, spec: Mapping[str, Any]) -> object:
        """Return ``managedBy``."""
        manager = spec.get("managedBy")
        return None if manager == MANAGERS[0] else manager

    def read_status(self, document: Mapping[str, Any]) -> JobStatus:
        """Return danlu's own status, or else the end of a job that Kubeflow Trainer ran."""
        return read_train_job_status(document)

    def write_status(self, status: JobStatus, job: Job | None) -> Manifest:
        """Return what Kubeflow Trainer writes (never *Created* or *Running*), and danlu's own."""
        if status == JobStatus():
            return {}
        jobs = [_count_jobs(job, type, status) for type in job.replicas] if job else []
        return drop_empty(
            {
                "conditions": [*_describe_conditions(status, job)],
                "jobsStatus": jobs,
                STATUS_FIELD: status_to_manifest(status),
            }
        )

    def _has_ended(self, obj: JobObject) -> bool:
        return self.read_status(msgspec.json.decode(obj.status) or {}).finished

    async def _find_snapshot(self, obj: JobObject) -> Mapping[str, Any] | None:
        """Return the runtime that the job started with, None if it has not."""
        key, name = obj.key, runtime_snapshot_name(obj.key.name)
        try:
            found = await self._client.get(CONFIG_MAPS, name, namespace=key.namespace)
        except NotFound:
            return None
        owners = found["metadata"].get("ownerReferences") or ()
        if all(owner["uid"] != obj.metadata.uid for owner in owners):
            raise NameConflict(CONFIG_MAPS.kind, name)
        text = (found.get("data") or {}).get(SNAPSHOT_KEY) or ""
        runtime = next((value for value, _ in read_yaml(text, name)), None)
        return runtime if isinstance(runtime, Mapping) else {}

    async def _take_snapshot(
        self, obj: JobObject, reference: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the runtime that a new job refers to, and keep it."""
        key = obj.key
        runtime = await self._read_runtime(reference, key.namespace)
        owner = owner_reference(API_VERSION, TRAIN_JOB.kind, key.name, obj.metadata.uid)
        name = runtime_snapshot_name(key.name)
        metadata = {"name": name, "namespace": key.namespace, "ownerReferences": [owner]}
        data = {SNAPSHOT_KEY: msgspec.json.encode(runtime).decode()}
        try:
            await self._client.create(
                CONFIG_MAPS, CONFIG_MAPS.to_manifest({"metadata": metadata, "data": data})
            )
        except AlreadyExists as error:
            if kept := await self._find_snapshot(obj):
                return kept
            raise NameConflict(CONFIG_MAPS.kind, name) from error
        return runtime

    async def _read_runtime(
        self, reference: Mapping[str, Any], namespace: str
    ) -> Mapping[str, Any]:
        kind, group = reference.get("kind"), reference.get("apiGroup") or API_GROUP
        kind = kind or RUNTIME_KINDS[0]
        if kind not in RUNTIME_KINDS or group != API_GROUP:
            raise UnsupportedRuntime(f"unsupported runtime: {kind}.{group}")
        resource, name = runtime_resource(kind), str(reference.get("name") or "")
        place = {"namespace": namespace} if resource.namespaced else {}
        try:
            found = await self._client.get(resource, name, **place)
        except NotFound as error:
            raise MissingRuntime(f"{kind} {name} not found") from error
        labels = drop_empty({"labels": found["metadata"].get("labels")})
        return resource.to_manifest({"metadata": {"name": name, **labels}, "spec": found["spec"]})


def _describe_conditions(status: JobStatus, job: Job | None) -> Iterator[Manifest]:
    for condition in status.conditions:
        if condition.type in CONDITIONS:
            fields = {
                "type": CONDITIONS[condition.type][0],
                "status": condition.status,
                "reason": _choose_reason(condition, job),
                "message": condition.message,
                "lastTransitionTime": condition.last_transition_time,
            }
            yield msgspec.to_builtins(fields)


def _choose_reason(condition: JobCondition, job: Job | None) -> str:
    own = condition.reason.removeprefix(TRAIN_JOB.kind)
    if own == _RESUMED or own not in ("Succeeded", "Failed", "Suspended"):
        return own if own == _RESUMED else condition.reason
    if own == "Failed" and job is not None and job.job_restart_policy is not None:
        return _MAX_RESTARTS
    return CONDITIONS[condition.type][1]


def _count_jobs(job: Job, type: ReplicaType, status: JobStatus) -> Manifest:
    """Return the state of a replicated job and its one Job (JobSet's ``ReplicatedJobStatus``)."""
    counts = status.replica_statuses.get(type)
    active, succeeded = (counts.active, counts.succeeded) if counts else (0, 0)
    expected, suspended = job.replica_count(type), status.has_condition(ConditionType.SUSPENDED)
    records = [status.record(replica) for replica in job.replica_ids(type)]
    complete = expected > 0 and succeeded >= expected
    failed = not complete and any(record.failed for record in records)
    runs = not (complete or failed or suspended or status.finished)
    return {
        "name": str(type),
        "ready": int(runs and expected > 0 and active + succeeded >= expected),
        "succeeded": int(complete),
        "failed": int(failed),
        "active": int(runs and any(record.current for record in records)),
        "suspended": int(suspended),
    }
