"""Run buildkitd in a pod of a cluster, for ``--builder kubernetes``.

The pod is an ordinary one, created with the user's kubeconfig and reached with ``kubectl exec``
(``kube-pod://``): it listens on no network and has no service account, because steps are programs
of others. It ends by itself when nobody has used it for a while, whatever became of its creator.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from subprocess import DEVNULL, PIPE
from urllib.parse import quote

import anyio
import msgspec

from danlu.errors import MachineError, OutsideError
from danlu.kube.client import Client, DeleteOptions
from danlu.kube.config import ClusterConfig
from danlu.kube.core_v1 import ContainerStateTerminated, Pod
from danlu.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from danlu.kube.pod_waiting import waiting_reason
from danlu.kube.resources import PODS
from danlu.kube.types import Manifest
from danlu.util.pdeathsig import with_parent_death_signal
from danlu.util.sanitize import escape_unprintable

_CONTAINER = "buildkitd"
_PODS = PODS.with_model(Pod)
#: How long a pod of a build whose process was killed runs, if it is not kept for others.
_ABANDONED_SECONDS = 600
_POLL_SECONDS = 0.5
_LOG_LINES = 20
#: Reasons for which a container waits and never starts. ErrImagePull is tried again at once.
_FATAL_REASONS = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
)
_LABELS = {"app.kubernetes.io/managed-by": "danlu", "app.kubernetes.io/component": "buildkit"}
#: Runs the daemon ($2…) until no client has been connected for $1 seconds. Each client is a process
#: of the container (``kubectl exec``). The brackets keep the pattern from matching this script.
_SCRIPT = """\
limit=$1; shift
"$@" & daemon=$!
trap 'kill $daemon; wait $daemon; exit 0' TERM INT
idle=0
while kill -0 $daemon 2>/dev/null; do
    sleep 2 & wait $!
    if grep -qs '[d]ial-stdio' /proc/[0-9]*/cmdline; then idle=0; else idle=$((idle + 2)); fi
    if [ $idle -ge $limit ]; then kill $daemon; wait $daemon; exit 0; fi
done
wait $daemon
"""


class PodOptions(msgspec.Struct, frozen=True):
    """What a pod of buildkitd is made of.

    Without ``privileged`` the daemon is rootless and ``image`` must have ``rootlesskit``. A pod is
    deleted after the build if ``idle_seconds`` is 0, else it is kept for others, and ends when it
    was idle for so long. ``context`` and ``namespace`` are the kubeconfig's if empty.
    """

    image: str
    privileged: bool = False
    idle_seconds: int = 0
    context: str = ""
    namespace: str = ""
    pull_secret: str = ""
    ready_seconds: float = 300.0


@asynccontextmanager
async def run_buildkit_pod(
    options: PodOptions, cluster: ClusterConfig, report: Callable[[str], None]
) -> AsyncGenerator[str]:
    """Yield the address of a buildkitd in a pod, created unless there is one to use.

    ``report`` gets what the pod waits for. The pod is deleted if it does not become ready, and at
    the end if it is not kept. Raises :class:`MachineError` without ``kubectl``, and
    :class:`OutsideError` if the pod cannot be created or does not start.
    """
    if shutil.which("kubectl") is None:
        raise MachineError(
            "kubectl, which connects to a pod, was not found on PATH",
            hint="install kubectl, or build with --builder embedded",
        )
    async with Client(cluster) as client:
        pod = _DaemonPod(client, options, options.namespace or cluster.namespace)
        is_kept = False
        try:
            await pod.create(report)
            await pod.wait_until_ready(report)
            is_kept = options.idle_seconds > 0
            async with pod.keep_connection():
                yield pod.address
        finally:
            if not is_kept:
                with anyio.CancelScope(shield=True), anyio.move_on_after(30):
                    await pod.delete()


class _DaemonPod:
    """One pod: created or found, waited for, deleted."""

    def __init__(self, client: Client, options: PodOptions, namespace: str) -> None:
        self._client = client
        self._options = options
        self._namespace = namespace
        self._name = _make_name(options)
        self._uid = ""

    @property
    def address(self) -> str:
        """The address as ``buildctl`` reads it."""
        context = quote(self._options.context, safe="")
        query = f"context={context}&namespace={self._namespace}&container={_CONTAINER}"
        return f"kube-pod://{self._name}?{query}"

    async def create(self, report: Callable[[str], None]) -> None:
        """Create the pod unless it runs; one that has ended is replaced."""
        manifest = render_pod(self._options, self._name, self._namespace)
        with anyio.move_on_after(self._options.ready_seconds):
            while True:
                with suppress(AlreadyExists):
                    created = await self._client.create(_PODS, manifest)
                    self._uid = created.metadata.uid
                    report(f"created pod {self._namespace}/{self._name} with {self._options.image}")
                    return
                with suppress(NotFound):
                    pod = await self._read_pod()
                    if pod.status.phase in ("Succeeded", "Failed"):
                        await self._send_delete(pod.metadata.uid)
                    elif pod.metadata.deletion_timestamp is None:
                        return
                await anyio.sleep(_POLL_SECONDS)
        raise OutsideError(f"pod {self._name} is still being deleted", hint=self._inspect_hint)

    async def wait_until_ready(self, report: Callable[[str], None]) -> None:
        """Return when the daemon answers; raise :class:`OutsideError` with the cluster's reason."""
        reported = ""
        with anyio.move_on_after(self._options.ready_seconds):
            while True:
                try:
                    pod = await self._read_pod()
                except NotFound as error:
                    raise OutsideError(f"pod {self._name} was deleted while it started") from error
                if any(
                    condition.type == "Ready" and condition.status == "True"
                    for condition in pod.status.conditions
                ):
                    return
                await self._reject_failure(pod)
                reason = escape_unprintable(waiting_reason(pod))
                if reason and reason != reported:
                    report(f"pod {self._name}: {reason}")
                    reported = reason
                await anyio.sleep(_POLL_SECONDS)
        seconds = round(self._options.ready_seconds)
        reason = reported or "the daemon does not answer"
        raise OutsideError(
            f"pod {self._name} was not ready after {seconds} s: {reason}", hint=self._inspect_hint
        )

    async def _reject_failure(self, pod: Pod) -> None:
        for status in pod.status.container_statuses:
            if status.state.terminated is not None:
                raise await self._describe_end(status.state.terminated)
            waiting = status.state.waiting
            if waiting is not None and waiting.reason in _FATAL_REASONS:
                reason = escape_unprintable(waiting_reason(pod))
                raise OutsideError(
                    f"pod {self._name} cannot start: {reason}", hint=self._inspect_hint
                )
        if pod.status.phase in ("Succeeded", "Failed"):
            reason = ": ".join(filter(None, (pod.status.reason, pod.status.message)))
            reason = escape_unprintable(reason or pod.status.phase)
            raise OutsideError(f"pod {self._name} ended: {reason}", hint=self._inspect_hint)

    async def _describe_end(self, end: ContainerStateTerminated) -> OutsideError:
        lines: list[str] = []
        with suppress(OutsideError):
            log = self._client.read_log(self._name, namespace=self._namespace, container=_CONTAINER)
            async for line in log:
                lines.append(escape_unprintable(line.data.decode(errors="replace")))
        reason = escape_unprintable(": ".join(filter(None, (end.reason, end.message))))
        return OutsideError(
            f"buildkitd in pod {self._name} ended with exit code {end.exit_code}"
            + (f" ({reason})" if reason else ""),
            details=tuple(lines[-_LOG_LINES:]),
            hint="a cluster may forbid rootless daemons: see kubernetes.builder_privileged",
        )

    @asynccontextmanager
    async def keep_connection(self) -> AsyncGenerator[None]:
        """Count as a client of the pod, which would end during a long download otherwise."""
        context, namespace = self._options.context, self._namespace
        arguments = [f"--context={context}", f"--namespace={namespace}", "exec", "-i"]
        process = await anyio.open_process(
            with_parent_death_signal(
                [
                    *("kubectl", *arguments, f"--container={_CONTAINER}", self._name, "--"),
                    *("buildctl", "dial-stdio"),
                ]
            ),
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=DEVNULL,
            # Ctrl-C is handled here.
            start_new_session=True,
        )
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                with suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()

    async def delete(self) -> None:
        """Delete the pod if this process created it; failing to is not an error."""
        if self._uid:
            with suppress(ApiError, OutsideError):
                await self._send_delete(self._uid)

    async def _send_delete(self, uid: str) -> None:
        with suppress(NotFound, Conflict):
            options = DeleteOptions(grace=5, uid=uid)
            await self._client.delete(_PODS, self._name, namespace=self._namespace, options=options)

    async def _read_pod(self) -> Pod:
        return await self._client.get(_PODS, self._name, namespace=self._namespace)

    @property
    def _inspect_hint(self) -> str:
        return (
            f"`kubectl describe pod --namespace {self._namespace} {self._name}` explains it while "
            "it lasts; kubernetes.builder_image sets another image"
        )


def _make_name(options: PodOptions) -> str:
    """Return a name that builds share if the pod is kept for them, else a unique name."""
    if not options.idle_seconds:
        return f"danlu-buildkit-{os.urandom(5).hex()}"
    fields = (options.image, options.privileged, options.idle_seconds, options.pull_secret)
    return f"danlu-buildkit-{hashlib.sha256(repr(fields).encode()).hexdigest()[:10]}"


def render_pod(options: PodOptions, name: str, namespace: str) -> Manifest:
    """Return the manifest of a pod (BuildKit, examples/kubernetes/pod.rootless.yaml)."""
    security: Manifest = {"privileged": True}
    state, daemon = "/var/lib/buildkit", ["buildkitd"]
    if not options.privileged:
        security = {
            "runAsUser": 1000,
            "runAsGroup": 1000,
            # Containers of steps mount and unshare, which the runtime's default profiles forbid.
            "seccompProfile": {"type": "Unconfined"},
            "appArmorProfile": {"type": "Unconfined"},
        }
        state = "/home/user/.local/share/buildkit"
        daemon = ["rootlesskit", "buildkitd", "--oci-worker-no-process-sandbox"]
    limit = options.idle_seconds or _ABANDONED_SECONDS
    container = {
        "name": _CONTAINER,
        "image": options.image,
        "command": ["/bin/sh", "-c", _SCRIPT, _CONTAINER, str(limit), *daemon],
        "securityContext": security,
        "startupProbe": {
            "exec": {"command": ["buildctl", "debug", "workers"]},
            "periodSeconds": 1,
            "timeoutSeconds": 10,
            "failureThreshold": 120,
        },
        "volumeMounts": [{"name": "state", "mountPath": state}],
    }
    secrets = [{"name": options.pull_secret}] if options.pull_secret else []
    return PODS.to_manifest(
        {
            "metadata": {"name": name, "namespace": namespace, "labels": dict(_LABELS)},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": 10,
                "imagePullSecrets": secrets,
                "containers": [container],
                "volumes": [{"name": "state", "emptyDir": {}}],
            },
        }
    )
