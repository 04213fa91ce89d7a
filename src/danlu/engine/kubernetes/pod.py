"""The pod of an environment: created, waited for, asked why it ended, and deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from math import inf

import anyio

from danlu.engine.kubernetes.settings import SPEC_ANNOTATION, PodSettings
from danlu.errors import OutsideError
from danlu.kube.client import Client, DeleteOptions
from danlu.kube.core_v1 import Pod
from danlu.kube.errors import AlreadyExists, Conflict, NotFound
from danlu.kube.kubeconfig import load_cluster_config
from danlu.kube.pod_waiting import UNSCHEDULABLE, waiting_reason
from danlu.kube.resources import EVENTS, PODS
from danlu.kube.types import Manifest
from danlu.kube.watch import ListOptions
from danlu.util.human import format_duration
from danlu.util.sanitize import escape_unprintable

_PODS = PODS.with_model(Pod)
_POLL_SECONDS = 0.2
_GONE_TIMEOUT = 60.0
_EVENTS_SECONDS = 10.0
#: Reasons for which a container waits and never starts. ErrImagePull is tried again at once.
_FATAL_REASONS = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
)

_UNSCHEDULABLE_HINT = "request less with --cpus, --memory or --gpus, or make room on a node"


class EnvironmentPod:
    """The pod of one environment in a cluster."""

    def __init__(self, client: Client, settings: PodSettings) -> None:
        self.client = client
        self.name = settings.name
        self.namespace = settings.namespace

    async def ensure_running(
        self, manifest: Manifest, report: Callable[[str], None], *, limit: float = inf
    ) -> bool:
        """Create the pod unless it runs as ``manifest`` says; return whether it was created.

        Each new reason for which it does not start is passed to ``report``. If this is interrupted
        or fails, the pod is deleted. Raises :class:`OutsideError` with the cluster's reason, also
        if the pod does not run after ``limit`` seconds.
        """
        created = False
        try:
            if not await self._matches_manifest(manifest):
                await self.delete(grace=0)
                created = True
                await self._create_pod(manifest)
            await self._wait_until_running(report, limit)
        except BaseException:
            # A pod that ran before has files that are nowhere else.
            if created:
                with anyio.CancelScope(shield=True), suppress(OutsideError):
                    await self.delete(grace=0, wait=False)
            raise
        return created

    async def _create_pod(self, manifest: Manifest) -> None:
        try:
            await self.client.create(_PODS, manifest)
        except AlreadyExists as error:
            raise OutsideError(f"another process has just created pod {self.name}") from error

    async def _matches_manifest(self, manifest: Manifest) -> bool:
        """Return whether the pod of an earlier supervisor runs, made of the same manifest."""
        pod = await self.read()
        if pod is None or pod.metadata.deletion_timestamp is not None:
            return False
        wanted = manifest["metadata"]["annotations"][SPEC_ANNOTATION]
        return pod.status.phase in ("Pending", "Running") and (
            pod.metadata.annotations.get(SPEC_ANNOTATION) == wanted
        )

    async def read(self) -> Pod | None:
        """Return the pod; None if it does not exist."""
        try:
            return await self.client.get(_PODS, self.name, namespace=self.namespace)
        except NotFound:
            return None

    async def _wait_until_running(self, report: Callable[[str], None], limit: float) -> None:
        reported = event = ""
        deadline = anyio.current_time() + limit
        next_events = anyio.current_time() + _EVENTS_SECONDS
        while True:
            pod = await self.read()
            if pod is None:
                raise OutsideError(f"pod {self.name} was deleted while it started")
            states = [status.state for status in pod.status.container_statuses]
            if pod.status.phase == "Running" and states and all(state.running for state in states):
                return
            await self._reject_failure(pod)
            reason = escape_unprintable(waiting_reason(pod))
            hint = _UNSCHEDULABLE_HINT if reason.startswith(UNSCHEDULABLE) else ""
            if anyio.current_time() >= deadline:
                raise OutsideError(
                    f"pod {self.name} did not start within {format_duration(limit)}: {reason}",
                    hint=hint or "kubernetes.start_timeout sets the limit",
                )
            if reason and reason != reported:
                report(f"pod {self.name}: {reason}" + (f" ({hint})" if hint else ""))
                reported = reason
            if anyio.current_time() >= next_events:
                # Why a volume cannot be attached or mounted is not in the pod's status.
                last = await self._read_last_event()
                if last not in ("", event):
                    report(f"pod {self.name}: {last}")
                event = last
                next_events = anyio.current_time() + _EVENTS_SECONDS
            await anyio.sleep(_POLL_SECONDS)

    async def _reject_failure(self, pod: Pod) -> None:
        ended = describe_end(pod)
        if ended:
            raise OutsideError(f"pod {self.name} ended while it started: {ended}")
        for status in pod.status.container_statuses:
            waiting = status.state.waiting
            if waiting is not None and waiting.reason in _FATAL_REASONS:
                reason = escape_unprintable(waiting_reason(pod))
                raise OutsideError(
                    f"pod {self.name} cannot start: {reason}", hint=_hint_for(waiting.reason)
                )

    async def explain_end(self) -> str:
        """Return why the pod has ended or is gone; empty if it still runs."""
        pod = await self.read()
        if pod is None:
            event = await self._read_last_event()
            return f"pod {self.name} was deleted, not by danlu" + (f" ({event})" if event else "")
        return describe_end(pod)

    async def _read_last_event(self) -> str:
        """Return the last warning about the pod, if the user may read events."""
        with suppress(OutsideError):
            selector = ListOptions(self.namespace, fields=f"involvedObject.name={self.name}")
            events = (await self.client.list(EVENTS, selector)).items
            messages = [
                f"{event.get('reason', '')}: {event.get('message', '')}"
                for event in sorted(events, key=lambda event: str(event.get("lastTimestamp")))
                if event.get("type") == "Warning" or event.get("reason") == "TaintManagerEviction"
            ]
            if messages:
                return escape_unprintable(messages[-1])
        return ""

    async def delete(self, *, grace: int, wait: bool = True) -> None:
        """Delete the pod if it exists, and wait until it is gone."""
        pod = await self.read()
        if pod is None:
            return
        with suppress(NotFound, Conflict):
            # With the uid as a precondition: a pod created under the name meanwhile is not ours to
            # delete.
            options = DeleteOptions(grace=grace, uid=pod.metadata.uid)
            await self.client.delete(_PODS, self.name, namespace=self.namespace, options=options)
        if not wait:
            return
        with anyio.move_on_after(_GONE_TIMEOUT):
            while (left := await self.read()) and left.metadata.uid == pod.metadata.uid:
                await anyio.sleep(_POLL_SECONDS)
            return
        raise OutsideError(
            f"pod {self.name} is still being deleted after {_GONE_TIMEOUT:.0f} s",
            hint=f"`kubectl describe pod --namespace {self.namespace} {self.name}` shows the"
            " reason; its node may be gone",
        )


def describe_end(pod: Pod) -> str:
    """Return why a pod has ended, with the reasons of Kubernetes; empty if it runs or will run."""
    status = pod.status
    for condition in status.conditions:
        # An eviction, a preemption, or a node that is gone.
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return _join_reasons(f"pod {pod.metadata.name} was removed from its node", condition)
    if status.reason:
        return escape_unprintable(": ".join(filter(None, (status.reason, status.message))))
    for container in status.container_statuses:
        end = container.state.terminated
        if end is not None:
            reason = end.reason or "Error"
            detail = f": {end.message}" if end.message else ""
            return escape_unprintable(f"{reason} (exit code {end.exit_code}){detail}")
    if pod.metadata.deletion_timestamp is not None:
        return f"pod {pod.metadata.name} was deleted, not by danlu"
    return status.phase if status.phase in ("Succeeded", "Failed") else ""


def _join_reasons(text: str, condition: object) -> str:
    reason, message = getattr(condition, "reason", ""), getattr(condition, "message", "")
    return escape_unprintable(": ".join(filter(None, (text, reason, message))))


def _hint_for(reason: str) -> str:
    if "Image" in reason:
        return (
            "nodes must reach kubernetes.registry; a private one needs the Secret"
            " kubernetes.image_pull_secret"
        )
    return "`kubectl describe pod` says more"


@asynccontextmanager
async def open_pod(settings: PodSettings) -> AsyncIterator[EnvironmentPod]:
    """Connect to the cluster of an environment."""
    access = load_cluster_config(context=settings.context)
    async with Client(access, connections=0, manager="danlu") as client:
        yield EnvironmentPod(client, settings)
