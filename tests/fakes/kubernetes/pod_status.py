"""The status that a kubelet writes for a pod in each phase (core/v1 PodStatus)."""

from __future__ import annotations

from typing import Any

from tests.fakes.kubernetes.pod_script import PodContainer, PodScript, SimulatedPod

__all__ = [
    "crash_loop_status",
    "eviction_status",
    "pending_status",
    "running_status",
    "terminal_status",
    "unschedulable_status",
]

Object = dict[str, Any]
_IMAGE = "sha256:" + "0" * 64


def unschedulable_status(why: str) -> Object:
    """Return the status of a pod for which no node fits."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": why,
    }
    return {"phase": "Pending", "conditions": [condition]}


def pending_status(pod: SimulatedPod, course: PodScript) -> Object:
    """Return the status of a pod on a node whose containers do not run yet."""
    waiting = {"reason": course.waiting or "ContainerCreating"}
    results = [
        _container_status(pod, container, {"waiting": waiting}) for container in pod.spec.containers
    ]
    return {
        "phase": "Pending",
        "conditions": _pod_conditions(ready=False),
        "containerStatuses": results,
    }


def running_status(
    pod: SimulatedPod, *, now: str, address: str, restarts: int, last: Object | None
) -> Object:
    """Return the status of a running pod; ``last`` is how containers ended before a restart."""
    state = {"running": {"startedAt": now}}
    status: Object = {
        "phase": "Running",
        "hostIP": "127.0.0.1",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": _pod_conditions(ready=True),
        "containerStatuses": [
            _container_status(pod, container, state, restarts=restarts, last=last)
            for container in pod.spec.containers
        ],
    }
    if not restarts:
        status["startTime"] = now
    if pod.spec.init_containers:
        result = _render_terminated_state(0, "Completed", since=now, now=now)
        inits = [
            _container_status(pod, container, result) for container in pod.spec.init_containers
        ]
        status["initContainerStatuses"] = [{**init_status, "ready": True} for init_status in inits]
    return status


def terminal_status(
    pod: SimulatedPod, course: PodScript, code: int, *, since: str, now: str, restarts: int
) -> Object:
    """Return the status of a pod whose containers have ended for good."""
    codes = [_container_exit_code(container, course, code) for container in pod.spec.containers]
    return {
        "phase": "Failed" if any(codes) else "Succeeded",
        "conditions": _pod_conditions(ready=False, reason="PodFailed" if any(codes) else ""),
        "containerStatuses": [
            _container_status(
                pod,
                container,
                terminated_state(container, course, code, since=since, now=now),
                restarts=restarts,
            )
            for container in pod.spec.containers
        ],
    }


def crash_loop_status(
    pod: SimulatedPod, course: PodScript, *, since: str, now: str, restarts: int
) -> Object:
    """Return the status of a pod whose containers wait for their next restart."""
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    return {
        "phase": "Running",
        "conditions": _pod_conditions(ready=False),
        "containerStatuses": [
            _container_status(
                pod,
                container,
                waiting,
                restarts=restarts,
                last=terminated_state(container, course, course.exit_code, since=since, now=now),
            )
            for container in pod.spec.containers
        ],
    }


def eviction_status(course: PodScript) -> Object:
    """Return the status of an evicted pod (kubelet/eviction)."""
    message = course.message or f"The pod was ended: {course.pod_reason}."
    return {
        "phase": "Failed",
        "reason": course.pod_reason,
        "message": message,
        "containerStatuses": [],
        "conditions": _pod_conditions(ready=False, reason="PodFailed"),
    }


def terminated_state(
    container: PodContainer, course: PodScript, code: int, *, since: str, now: str
) -> Object:
    """Return the state of a container that has ended."""
    code = _container_exit_code(container, course, code)
    reason = (course.reason if code else "") or ("Error" if code else "Completed")
    meant = course.container in ("", container.name)
    return _render_terminated_state(
        code, reason, since=since, now=now, message=course.message * meant
    )


def _container_exit_code(container: PodContainer, course: PodScript, code: int) -> int:
    return code if course.container in ("", container.name) else 0


def _render_terminated_state(
    code: int, reason: str, *, since: str, now: str, message: str = ""
) -> Object:
    output: Object = {"exitCode": code, "reason": reason, "startedAt": since, "finishedAt": now}
    if message:
        output["message"] = message
    return {"terminated": output}


def _container_status(
    pod: SimulatedPod,
    container: PodContainer,
    state: Object,
    *,
    restarts: int = 0,
    last: Object | None = None,
) -> Object:
    runs = "running" in state
    status = {
        "name": container.name,
        "image": container.image,
        "imageID": "" if "waiting" in state else _IMAGE,
        "ready": runs,
        "started": runs,
        "restartCount": restarts,
        "state": state,
        "lastState": last or {},
    }
    if "waiting" not in state:
        status["containerID"] = f"simulated://{pod.metadata.uid}/{container.name}/{restarts}"
    return status


def _pod_conditions(*, ready: bool, reason: str = "") -> list[Object]:
    output: Object = {"status": "True" if ready else "False"}
    if reason:
        output["reason"] = reason
    return [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Initialized", "status": "True"},
        {"type": "ContainersReady", **output},
        {"type": "Ready", **output},
    ]
