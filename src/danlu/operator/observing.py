"""What the pods of a job say of its replicas; nothing is judged here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from danlu.kube.types import ObjectMeta
from danlu.operator.types import ContainerStatus, PodObject, Terminated
from danlu.training.framework import Framework
from danlu.training.rendering import JOB_NAME, OPERATOR_NAME, REPLICA_INDEX, REPLICA_TYPE
from danlu.training.types import Observed, ObservedReplica, Phase, ReplicaId, ReplicaType

__all__ = ["is_ours", "observed", "observed_pod", "replica_of"]

#: A pod whose machine does not answer is "Unknown": nobody says that it ended.
PHASES = {"Running": Phase.RUNNING, "Succeeded": Phase.SUCCEEDED, "Failed": Phase.FAILED}
PHASES["Unknown"] = Phase.RUNNING


def observed(pods: Iterable[PodObject], framework: Framework) -> Observed:
    """The attempts that these pods are; those without a replica's labels are none."""
    found = (observed_pod(pod, framework) for pod in pods)
    return Observed(tuple(one for one in found if one is not None))


def observed_pod(pod: PodObject, framework: Framework) -> ObservedReplica | None:
    """The attempt that a pod is."""
    id = replica_of(pod.metadata, framework)
    if id is None:
        return None
    phase = PHASES.get(pod.status.phase, Phase.PENDING)
    end = _end(pod, framework) if phase in (Phase.SUCCEEDED, Phase.FAILED) else None
    return ObservedReplica(
        id=id,
        phase=phase,
        uid=pod.metadata.uid,
        exit_code=end.exit_code if end else None,
        reason=_reason(pod, end) if phase is Phase.FAILED else "",
        message=_message(pod, end) if phase is Phase.FAILED else "",
        restarts=sum(one.restart_count for one in _all(pod)),
        deleting=pod.metadata.deletion_timestamp is not None,
        started=pod.status.start_time,
        finished=end.finished_at if end else None,
    )


def is_ours(metadata: ObjectMeta, job: str, framework: Framework) -> bool:
    """Whether the labels are those of a job of this kind and name."""
    operator = f"{framework.kind.lower()}-controller"
    labels = metadata.labels
    return labels.get(JOB_NAME) == job and labels.get(OPERATOR_NAME) == operator


def replica_of(metadata: ObjectMeta, framework: Framework) -> ReplicaId | None:
    """Which replica the labels name, if any; a type that the framework lacks keeps its name."""
    type, index = metadata.labels.get(REPLICA_TYPE, ""), metadata.labels.get(REPLICA_INDEX, "")
    if not type or not index.isdecimal():
        return None
    known = next((one for one in framework.types if one.lower() == type), ReplicaType(type))
    return ReplicaId(known, int(index))


def _end(pod: PodObject, framework: Framework) -> Terminated | None:
    """How the framework's container ended: the one of its name, else the first."""
    statuses = pod.status.container_statuses
    main = next((one for one in statuses if one.name == framework.container), None)
    if main is None and statuses and framework.any_container:
        main = statuses[0]
    return main.state.terminated if main is not None else None


def _reason(pod: PodObject, end: Terminated | None) -> str:
    """The word for a bad end: the pod's own (Evicted …), else its container's (OOMKilled …)."""
    return pod.status.reason or (end.reason if end else "") or _disruption(pod)


def _message(pod: PodObject, end: Terminated | None) -> str:
    return pod.status.message or (end.message if end else "")


def _disruption(pod: PodObject) -> str:
    """Why the control plane ended it (condition DisruptionTarget)."""
    found = (one for one in pod.status.conditions if one.type == "DisruptionTarget")
    return next((one.reason for one in found if one.status == "True"), "")


def _all(pod: PodObject) -> Iterator[ContainerStatus]:
    yield from pod.status.init_container_statuses
    yield from pod.status.container_statuses
