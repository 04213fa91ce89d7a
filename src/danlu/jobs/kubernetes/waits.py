"""Why a pod does not run, in words: what its status says, for somebody who knows no Kubernetes."""

from __future__ import annotations

from collections.abc import Sequence

from danlu.jobs.kubernetes.objects import ContainerStatus, PodObject

__all__ = ["STARTING", "why"]

STARTING = "its container to be made"
"""What a pod waits for that a node has taken up."""

_WORDS = {
    "ContainerCreating": STARTING,
    "PodInitializing": STARTING,
    "CrashLoopBackOff": "a while before it is started again",
    "CreateContainerConfigError": "what its container is given",
    "CreateContainerError": "its container, which cannot be made",
    "ErrImagePull": "its image, which cannot be pulled",
    "ImagePullBackOff": "its image, which cannot be pulled",
    "InvalidImageName": "its image, whose name is none",
    "ErrImageNeverPull": "its image, which the node does not have",
    "RunContainerError": "its container, which cannot be started",
}


def why(pod: PodObject) -> str:
    """For what a pod waits; empty where its containers run or ended."""
    status = pod.status
    if status.phase not in ("", "Pending", "Running"):
        return ""
    containers = (*status.init_container_statuses, *status.container_statuses)
    return _of_containers(containers) or _of_scheduling(pod)


def _of_containers(containers: Sequence[ContainerStatus]) -> str:
    waiting = [one.state.waiting for one in containers if one.state.waiting]
    # Why one cannot be started says more than that another is not there yet.
    waiting.sort(key=lambda one: one.reason in ("ContainerCreating", "PodInitializing"))
    if not waiting:
        return ""
    first = waiting[0]
    words = _WORDS.get(first.reason, first.reason)
    return f"{words}: {first.message}" if first.message else words


def _of_scheduling(pod: PodObject) -> str:
    for one in pod.status.conditions:
        if one.type == "PodScheduled" and one.status == "False":
            if one.reason == "SchedulingGated":
                return "its turn: something holds it back (a queue, a gang)"
            return f"a node: {one.message}" if one.message else "a node"
    if pod.status.phase == "Running":
        return ""
    if any(one.type == "PodScheduled" for one in pod.status.conditions):
        return "its node to take it up"
    return "the scheduler"
