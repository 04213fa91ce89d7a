"""Explain why a pod is not running, from its status.

The reason of Kubernetes always comes first, verbatim, because it is what people search for:
``ImagePullBackOff: cannot pull the image: Back-off pulling image "team/env:1"``.
"""

from __future__ import annotations

from collections.abc import Sequence

from danlu.kube.core_v1 import ContainerStatus, Pod

_EXPLANATIONS = {
    "ContainerCreating": "pulling the image and mounting volumes",
    "PodInitializing": "running init containers",
    "CrashLoopBackOff": "the container keeps failing and is restarted after a delay",
    "CreateContainerConfigError": "invalid container config (missing ConfigMap or Secret?)",
    "CreateContainerError": "cannot create the container",
    "ErrImagePull": "cannot pull the image",
    "ImagePullBackOff": "cannot pull the image",
    "InvalidImageName": "invalid image name",
    "ErrImageNeverPull": "the image is not on the node, and imagePullPolicy is Never",
    "RunContainerError": "cannot start the container",
}

_STARTING_REASONS = ("ContainerCreating", "PodInitializing")
STARTING = frozenset(f"{reason}: {_EXPLANATIONS[reason]}" for reason in _STARTING_REASONS)
"""What :func:`waiting_reason` returns for a pod that starts normally, as far as its status says."""


UNSCHEDULABLE = "Unschedulable"
"""How :func:`waiting_reason` begins for a pod that fits on no node."""


def waiting_reason(pod: Pod) -> str:
    """Return why a pod is waiting; empty if its containers are running or have ended."""
    status = pod.status
    if status.phase not in ("", "Pending", "Running"):
        return ""
    containers = (*status.init_container_statuses, *status.container_statuses)
    return _container_reason(containers) or _scheduling_reason(pod)


def _container_reason(containers: Sequence[ContainerStatus]) -> str:
    waiting = [status.state.waiting for status in containers if status.state.waiting]
    # An error of one container says more than that another one is not started yet.
    waiting.sort(key=lambda state: state.reason in _STARTING_REASONS)
    if not waiting:
        return ""
    first = waiting[0]
    return ": ".join(filter(None, (first.reason, _EXPLANATIONS.get(first.reason), first.message)))


def _scheduling_reason(pod: Pod) -> str:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            if condition.reason == "SchedulingGated":
                return "SchedulingGated: held back by a queue or a gang"
            reason = condition.reason or UNSCHEDULABLE
            return f"{reason}: {condition.message or 'no suitable node'}"
    if pod.status.phase == "Running":
        return ""
    if any(condition.type == "PodScheduled" for condition in pod.status.conditions):
        return "scheduled, waiting for the kubelet"
    return "waiting for the scheduler"
