"""The status that a kubelet writes for a pod, phase by phase (core/v1 PodStatus)."""

from __future__ import annotations

from typing import Any

from danlu.testing.kubernetes.courses import Course, Pod, PodContainer

__all__ = ["crashed", "evicted", "finished", "pending", "running", "unscheduled"]

Object = dict[str, Any]
_IMAGE = "sha256:" + "0" * 64


def unscheduled(why: str) -> Object:
    """No node is found."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": why,
    }
    return {"phase": "Pending", "conditions": [condition]}


def pending(pod: Pod, course: Course) -> Object:
    """On a node, and nothing runs yet."""
    waiting = {"reason": course.waiting or "ContainerCreating"}
    found = [_container(pod, one, {"waiting": waiting}) for one in pod.spec.containers]
    return {
        "phase": "Pending",
        "conditions": _conditions(ready=False),
        "containerStatuses": found,
    }


def running(pod: Pod, *, now: str, address: str, restarts: int, last: Object | None) -> Object:
    """All containers run; ``last`` is how they ended before a restart in place."""
    state = {"running": {"startedAt": now}}
    status: Object = {
        "phase": "Running",
        "hostIP": "127.0.0.1",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": _conditions(ready=True),
        "containerStatuses": [
            _container(pod, one, state, restarts=restarts, last=last) for one in pod.spec.containers
        ],
    }
    if not restarts:
        status["startTime"] = now
    if pod.spec.init_containers:
        ended = _terminated(0, "Completed", since=now, now=now)
        inits = [_container(pod, one, ended) for one in pod.spec.init_containers]
        status["initContainerStatuses"] = [{**one, "ready": True} for one in inits]
    return status


def finished(pod: Pod, course: Course, code: int, *, since: str, now: str, restarts: int) -> Object:
    """All containers have ended, and are not started again."""
    codes = [_code(one, course, code) for one in pod.spec.containers]
    return {
        "phase": "Failed" if any(codes) else "Succeeded",
        "conditions": _conditions(ready=False, reason="PodFailed" if any(codes) else ""),
        "containerStatuses": [
            _container(pod, one, ended(one, course, code, since=since, now=now), restarts=restarts)
            for one in pod.spec.containers
        ],
    }


def crashed(pod: Pod, course: Course, *, since: str, now: str, restarts: int) -> Object:
    """All containers have ended and wait for their next start in place."""
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    return {
        "phase": "Running",
        "conditions": _conditions(ready=False),
        "containerStatuses": [
            _container(
                pod,
                one,
                waiting,
                restarts=restarts,
                last=ended(one, course, course.exit_code, since=since, now=now),
            )
            for one in pod.spec.containers
        ],
    }


def evicted(course: Course) -> Object:
    """The whole pod was ended for a reason of its own (kubelet/eviction)."""
    message = course.message or f"The pod was ended: {course.pod_reason}."
    return {
        "phase": "Failed",
        "reason": course.pod_reason,
        "message": message,
        "containerStatuses": [],
        "conditions": _conditions(ready=False, reason="PodFailed"),
    }


def ended(container: PodContainer, course: Course, code: int, *, since: str, now: str) -> Object:
    """The state of a container that has ended."""
    code = _code(container, course, code)
    reason = (course.reason if code else "") or ("Error" if code else "Completed")
    meant = course.container in ("", container.name)
    return _terminated(code, reason, since=since, now=now, message=course.message * meant)


def _code(container: PodContainer, course: Course, code: int) -> int:
    return code if course.container in ("", container.name) else 0


def _terminated(code: int, reason: str, *, since: str, now: str, message: str = "") -> Object:
    said: Object = {"exitCode": code, "reason": reason, "startedAt": since, "finishedAt": now}
    if message:
        said["message"] = message
    return {"terminated": said}


def _container(
    pod: Pod,
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


def _conditions(*, ready: bool, reason: str = "") -> list[Object]:
    said: Object = {"status": "True" if ready else "False"}
    if reason:
        said["reason"] = reason
    return [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Initialized", "status": "True"},
        {"type": "ContainersReady", **said},
        {"type": "Ready", **said},
    ]
