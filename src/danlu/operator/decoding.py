"""Jobs and pods of the cache as values that :mod:`danlu.training` decides on."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from danlu.kube.core_v1 import ContainerStateTerminated, Pod
from danlu.kube.types import ObjectMeta
from danlu.operator.job_formats import JobFormat
from danlu.operator.types import JobObject
from danlu.training.document import ManifestError
from danlu.training.framework import Framework
from danlu.training.names import RESTART_POLICY_ANNOTATION
from danlu.training.rendering import JOB_NAME, OPERATOR_NAME, parse_replica_id
from danlu.training.types import (
    Job,
    JobStatus,
    ObservedReplica,
    ObservedReplicas,
    ReplicaPhase,
)

_PHASES = {
    "Running": ReplicaPhase.RUNNING,
    "Succeeded": ReplicaPhase.SUCCEEDED,
    "Failed": ReplicaPhase.FAILED,
    # The node does not respond, so whether the pod has ended is unknown.
    "Unknown": ReplicaPhase.RUNNING,
}


# -- jobs -----------------------------------------------------------------------------------------


class JobDecoder:
    """Decodes jobs of one kind: validates the spec, sets defaults, reads the status.

    A decoded spec is cached, because validation and defaulting cost a hundred times as much as
    reading the status, and specs rarely change.
    """

    def __init__(self, job_format: JobFormat) -> None:
        self._job_format = job_format
        self._cache: dict[str, tuple[bytes, str | None, Job]] = {}

    def __len__(self) -> int:
        """Return the number of cached specs."""
        return len(self._cache)

    async def decode(self, obj: JobObject) -> Job:
        """Return the job; raises :class:`ManifestError` with everything that is invalid."""
        metadata = obj.metadata
        return msgspec.structs.replace(
            await self._decode_spec(obj),
            labels=metadata.labels,
            annotations=metadata.annotations,
            status=self.decode_status(obj),
            deleting=metadata.deletion_timestamp is not None,
        )

    def decode_status(self, obj: JobObject) -> JobStatus:
        """Return the job's status; raises :class:`ManifestError` if it is invalid."""
        status = msgspec.json.decode(obj.status)
        if not isinstance(status, dict | None):
            raise ManifestError("invalid status: not a mapping")
        return self._job_format.read_status(status or {})

    def is_managed_by_other(self, obj: JobObject) -> bool:
        """Return whether ``managedBy`` names another controller, even if the job is invalid."""
        spec = msgspec.json.decode(obj.spec)
        return isinstance(spec, dict) and bool(self._job_format.find_manager(spec))

    def forget(self, uid: str) -> None:
        """Forget a job that no longer exists."""
        self._cache.pop(uid, None)

    async def _decode_spec(self, obj: JobObject) -> Job:
        cached = self._cache.get(obj.metadata.uid)
        spec = bytes(obj.spec)
        policy = obj.metadata.annotations.get(RESTART_POLICY_ANNOTATION)
        if cached is not None and cached[:2] == (spec, policy):
            return cached[2]
        job = await self._job_format.read_job(obj)
        self._cache[obj.metadata.uid] = (spec, policy, job)
        return job


# -- pods -----------------------------------------------------------------------------------------


def observe_pods(pods: Iterable[Pod], framework: Framework) -> ObservedReplicas:
    """Return the state of the replicas; pods without the labels of a replica are ignored."""
    replicas = (observe_pod(pod, framework) for pod in pods)
    return ObservedReplicas(tuple(replica for replica in replicas if replica is not None))


def observe_pod(pod: Pod, framework: Framework) -> ObservedReplica | None:
    """Return the attempt of a replica that a pod is, or None."""
    id = parse_replica_id(pod.metadata.labels, framework)
    if id is None:
        return None
    status = pod.status
    phase = _PHASES.get(status.phase, ReplicaPhase.PENDING)
    ended = phase in (ReplicaPhase.SUCCEEDED, ReplicaPhase.FAILED)
    failed = phase is ReplicaPhase.FAILED
    terminated = _terminated_state(pod, framework) if ended else None
    containers = (*status.init_container_statuses, *status.container_statuses)
    return ObservedReplica(
        id=id,
        phase=phase,
        uid=pod.metadata.uid,
        exit_code=terminated.exit_code if terminated else None,
        reason=_failure_reason(pod, terminated) if failed else "",
        message=_failure_message(pod, terminated) if failed else "",
        restarts=sum(container.restart_count for container in containers),
        deleting=pod.metadata.deletion_timestamp is not None,
        started=status.start_time,
        finished=terminated.finished_at if terminated else None,
    )


def has_job_labels(metadata: ObjectMeta, job: str, framework: Framework) -> bool:
    """Return whether the labels are those of a job of this kind and name."""
    labels = metadata.labels
    return labels.get(JOB_NAME) == job and labels.get(OPERATOR_NAME) == framework.operator_name


def _terminated_state(pod: Pod, framework: Framework) -> ContainerStateTerminated | None:
    """Return how the framework's container ended: the one of its name, or else the first."""
    statuses = pod.status.container_statuses
    main = next((status for status in statuses if status.name == framework.container), None)
    if main is None and statuses and framework.any_container:
        main = statuses[0]
    return main.state.terminated if main is not None else None


def _failure_reason(pod: Pod, terminated: ContainerStateTerminated | None) -> str:
    """Return the pod's own reason (Evicted), its container's (OOMKilled), or its disruption's."""
    if reason := pod.status.reason or (terminated.reason if terminated else ""):
        return reason
    for condition in pod.status.conditions:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return condition.reason
    return ""


def _failure_message(pod: Pod, terminated: ContainerStateTerminated | None) -> str:
    return pod.status.message or (terminated.message if terminated else "")
