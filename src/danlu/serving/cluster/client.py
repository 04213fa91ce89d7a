"""Served models of a namespace: apply, wait for, list and remove them, and read their logs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress

import anyio
import msgspec

from danlu.errors import OutsideError, StepFailed, TemporaryError, UsageError
from danlu.kube.client import Client, DeleteOptions
from danlu.kube.config import ClusterConfig
from danlu.kube.core_v1 import Pod
from danlu.kube.errors import ApiError, BadRequest, Forbidden, NotFound
from danlu.kube.pod_logs import PodLogLine
from danlu.kube.pod_waiting import waiting_reason
from danlu.kube.resources import (
    DEPLOYMENTS,
    HORIZONTAL_POD_AUTOSCALERS,
    PODS,
    SERVICES,
    Resource,
)
from danlu.kube.types import Manifest, Object
from danlu.kube.watch import ListOptions
from danlu.serving.cluster.manifests import (
    CONTAINER,
    IMAGE_ANNOTATION,
    INFERENCE_SERVICES,
    MANAGED_LABELS,
    NAME_LABEL,
    REVISION_LABEL,
    SERVING_RUNTIMES,
    ModelDeployment,
    render_deployment,
    render_kserve,
)
from danlu.serving.cluster.views import ServedModelView, ServedPod
from danlu.util.sanitize import escape_unprintable, strip_control_sequences

_POLL_SECONDS = 0.5
_LOG_TAIL = 20
#: In this order they are removed: no request is sent to a pod that ends.
_RESOURCES: tuple[Resource[Manifest], ...] = (
    HORIZONTAL_POD_AUTOSCALERS,
    INFERENCE_SERVICES,
    SERVING_RUNTIMES,
    SERVICES,
    DEPLOYMENTS,
)
_BY_KIND = {resource.kind: resource for resource in _RESOURCES}
_POD = PODS.with_model(Pod)
#: Reasons for which a pod waits that more waiting does not change.
_FAILURES = (
    *("CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "ErrImagePull"),
    *("ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName", "RunContainerError"),
)
_MANAGED = ",".join(f"{name}={value}" for name, value in MANAGED_LABELS.items())


class _WorkloadCondition(msgspec.Struct, frozen=True):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class _WorkloadStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of a Deployment, or of an InferenceService (which has no numbers)."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    conditions: tuple[_WorkloadCondition, ...] = ()
    url: str = ""


class _PredictorSpec(msgspec.Struct, frozen=True, rename="camel"):
    labels: Mapping[str, str] = {}
    min_replicas: int = 1


class _PodTemplate(msgspec.Struct, frozen=True):
    metadata: Mapping[str, Mapping[str, str]] = {}


class _WorkloadSpec(msgspec.Struct, frozen=True):
    replicas: int = 1
    template: _PodTemplate = _PodTemplate()
    predictor: _PredictorSpec = _PredictorSpec()


class _ServedWorkload(Object, frozen=True, gc=False, rename="camel"):
    """A Deployment or an InferenceService."""

    spec: _WorkloadSpec = _WorkloadSpec()
    status: _WorkloadStatus = _WorkloadStatus()


_DEPLOYMENT = DEPLOYMENTS.with_model(_ServedWorkload)
_INFERENCE_SERVICE = INFERENCE_SERVICES.with_model(_ServedWorkload)


class ServedLine(msgspec.Struct, frozen=True):
    """A line of the log of a pod, without control characters."""

    pod: str
    text: str


class ClusterServing:
    """The served models of one namespace of a cluster; ``where`` is the context, for hints."""

    def __init__(self, access: ClusterConfig, *, namespace: str = "", where: str = "kubernetes"):
        self.namespace = namespace or access.namespace or "default"
        self.where = where
        self._access = access

    def _open_client(self) -> Client:
        return Client(self._access, connections=0, manager="danlu")

    # -- changing ---------------------------------------------------------------------------------

    async def apply(self, model: ModelDeployment, *, kserve: bool = False) -> bool:
        """Create a served model or change it; return whether there was one of that name.

        Raises :class:`UsageError` if another object has the name, :class:`OutsideError` if the
        cluster does not have KServe or refuses an object.
        """
        async with self._open_client() as client:
            found = await self._find_objects(client, model.name)
            self._check_owner(model.name, found, kserve=kserve)
            if kserve:
                documents = render_kserve(model)
            else:
                deployment = found.get(DEPLOYMENTS.kind)
                current = deployment["spec"].get("replicas", 1) if deployment else 0
                documents = render_deployment(model, current=current)
            try:
                # All are checked first, so that a refused one leaves nothing half done.
                for dry_run in (True, False):
                    for document in documents:
                        resource = _BY_KIND[document["kind"]]
                        await client.apply(resource, document, dry_run=dry_run)
            except NotFound as error:
                raise _explain_not_found(error, self.namespace, kserve=kserve) from error
            autoscaler = found.get(HORIZONTAL_POD_AUTOSCALERS.kind)
            if autoscaler is not None and model.replicas.is_constant:
                await _delete_object(client, HORIZONTAL_POD_AUTOSCALERS, autoscaler)
        return bool(found)

    async def _find_objects(self, client: Client, name: str) -> dict[str, Manifest]:
        """Return the objects of the name, by kind."""
        found = {}
        for resource in _RESOURCES:
            # NotFound may mean that the cluster does not have the kind, or not this one.
            with suppress(NotFound, Forbidden):
                found[resource.kind] = await client.get(resource, name, namespace=self.namespace)
        return found

    def _check_owner(self, name: str, found: Mapping[str, Manifest], *, kserve: bool) -> None:
        for kind, document in found.items():
            if not _is_ours(document, name):
                if kind == SERVICES.kind and INFERENCE_SERVICES.kind in found:
                    continue  # KServe's
                raise UsageError(
                    f"{kind} {name} exists in namespace {self.namespace}, and danlu did not"
                    " create it",
                    hint="choose another name with --name",
                )
        other = DEPLOYMENTS.kind if kserve else INFERENCE_SERVICES.kind
        if other in found and not (kserve and INFERENCE_SERVICES.kind in found):
            raise UsageError(
                f"{name} is served by a {other}",
                hint=f"remove it with `danlu serve rm {name} --on {self.where}`, or choose another"
                " --name",
            )

    async def remove(self, name: str) -> None:
        """Remove a served model; its pods answer the requests that they have."""
        async with self._open_client() as client:
            found = await self._find_objects(client, name)
            ours = {kind: item for kind, item in found.items() if _is_ours(item, name)}
            if not ours:
                raise await self._not_found_error(client, name)
            for resource in _RESOURCES:
                if resource.kind in ours:
                    await _delete_object(client, resource, ours[resource.kind])

    # -- reading ----------------------------------------------------------------------------------

    async def views(self) -> Sequence[ServedModelView]:
        """Return all served models, by name, without their pods."""
        async with self._open_client() as client:
            return [_build_view(workload, ()) for workload in await self._list_workloads(client)]

    async def view(self, name: str) -> ServedModelView:
        """Return a served model with its pods; raise :class:`UsageError` if none has the name."""
        async with self._open_client() as client:
            return await self._load_view(client, name)

    async def _load_view(self, client: Client, name: str) -> ServedModelView:
        return _build_view(
            await self._find_workload(client, name), await self._list_pods(client, name)
        )

    async def _list_workloads(self, client: Client) -> list[_ServedWorkload]:
        options = ListOptions(self.namespace, labels=_MANAGED)
        found = [*(await client.list(_DEPLOYMENT, options)).items]
        with suppress(NotFound, Forbidden):  # without KServe, or without permission to use it
            found += (await client.list(_INFERENCE_SERVICE, options)).items
        return sorted(found, key=lambda workload: workload.metadata.name)

    async def _find_workload(self, client: Client, name: str) -> _ServedWorkload:
        for resource in (_DEPLOYMENT, _INFERENCE_SERVICE):
            with suppress(NotFound):
                workload = await client.get(resource, name, namespace=self.namespace)
                if workload.metadata.labels.get(NAME_LABEL) == name:
                    return msgspec.structs.replace(workload, kind=resource.kind)
        raise await self._not_found_error(client, name)

    async def _not_found_error(self, client: Client, name: str) -> UsageError:
        names = [workload.metadata.name for workload in await self._list_workloads(client)]
        return UsageError(
            f"no served model {name} in namespace {self.namespace}",
            hint=f"served there: {', '.join(names)}" if names else "",
        )

    async def _list_pods(self, client: Client, name: str) -> list[Pod]:
        options = ListOptions(self.namespace, labels=f"{NAME_LABEL}={name}")
        pods = (await client.list(_POD, options)).items
        return sorted(pods, key=lambda pod: pod.metadata.name)

    async def wait_until_ready(
        self, name: str, report: Callable[[str], None] = lambda text: None
    ) -> ServedModelView:
        """Wait until the last applied version answers, and return it.

        ``report`` gets what is being waited for, whenever that changes. Raises
        :class:`OutsideError` with the reason of Kubernetes if the cluster cannot run it, and
        :class:`StepFailed` with the last lines of the log if the server ends.
        """
        last = ""
        async with self._open_client() as client:
            while True:
                try:
                    workload = await self._find_workload(client, name)
                    pods = await self._list_pods(client, name)
                except TemporaryError:
                    await anyio.sleep(_POLL_SECONDS)
                    continue
                view = _build_view(workload, pods)
                if view.state == "Ready":
                    return view
                await self._check_failure(client, workload, pods)
                text = view.reason or f"{view.ready} of {view.replicas} replicas are ready"
                if text != last:
                    report(text)
                    last = text
                await anyio.sleep(_POLL_SECONDS)

    async def _check_failure(
        self, client: Client, workload: _ServedWorkload, pods: Sequence[Pod]
    ) -> None:
        if workload.status.observed_generation < workload.metadata.generation:
            return
        name = workload.metadata.name
        hint = f"`danlu serve status {name} --on {self.where}`"
        if workload.status.available_replicas:
            hint = f"the earlier version still answers; see {hint}"
        for pod in pods:
            reason = waiting_reason(pod) if _is_current(pod, workload) else ""
            if not reason.startswith(_FAILURES):
                continue
            message = f"{name} does not start: pod {pod.metadata.name}: {_escape_text(reason)}"
            if reason.startswith("CrashLoopBackOff"):
                lines = await self._read_last_lines(client, pod.metadata.name)
                raise StepFailed(message, code=1, details=lines, hint=hint)
            raise OutsideError(message, hint=hint)
        for text in _list_failures(workload.status):
            raise OutsideError(f"{name} does not start: {_escape_text(text)}", hint=hint)

    async def _read_last_lines(self, client: Client, pod: str) -> tuple[str, ...]:
        for previous in (True, False):
            lines: list[str] = []
            with suppress(ApiError):
                async for line in client.read_log(
                    pod,
                    namespace=self.namespace,
                    container=CONTAINER,
                    previous=previous,
                    tail=_LOG_TAIL,
                ):
                    lines.append(_decode_line(line))
            if lines:
                return tuple(lines)
        return ()

    async def logs(self, name: str, *, tail: int | None = None) -> AsyncGenerator[ServedLine, None]:
        """Yield the lines of the logs of all pods, pod by pod."""
        async with self._open_client() as client:
            await self._find_workload(client, name)
            for pod in await self._list_pods(client, name):
                with suppress(BadRequest, NotFound):  # it has not started, or is gone
                    async for line in self._read_pod(client, pod.metadata.name, tail=tail):
                        yield line

    async def follow_logs(
        self, name: str, show: Callable[[ServedLine], None], *, tail: int | None = None
    ) -> None:
        """Call ``show`` with the lines of all pods as they come, until the model is removed.

        Pods that are started later are included.
        """
        async with self._open_client() as client, anyio.create_task_group() as group:
            followed: set[str] = set()

            async def follow_pod(pod: str) -> None:
                try:
                    async for line in self._read_pod(client, pod, follow=True, tail=tail):
                        show(line)
                except BadRequest:
                    followed.discard(pod)  # it has not started
                except (NotFound, TemporaryError):
                    pass

            await self._find_workload(client, name)
            with suppress(UsageError):
                while True:
                    for pod in await self._list_pods(client, name):
                        if pod.metadata.name not in followed:
                            followed.add(pod.metadata.name)
                            group.start_soon(follow_pod, pod.metadata.name)
                    await anyio.sleep(2 * _POLL_SECONDS)
                    await self._find_workload(client, name)

    def _read_pod(
        self, client: Client, pod: str, *, follow: bool = False, tail: int | None = None
    ) -> AsyncIterator[ServedLine]:
        lines = client.read_log(
            pod, namespace=self.namespace, container=CONTAINER, follow=follow, tail=tail
        )
        return (ServedLine(pod, _decode_line(line)) async for line in lines)


def _is_ours(document: Manifest, name: str) -> bool:
    labels = document["metadata"].get("labels") or {}
    return labels.get(NAME_LABEL) == name


async def _delete_object(client: Client, resource: Resource[Manifest], document: Manifest) -> None:
    metadata = document["metadata"]
    with suppress(NotFound):
        await client.delete(
            resource,
            metadata["name"],
            namespace=metadata["namespace"],
            options=DeleteOptions(propagation="Background", uid=metadata["uid"]),
        )


def _explain_not_found(error: NotFound, namespace: str, *, kserve: bool) -> OutsideError:
    if error.status.details is not None and error.status.details.kind == "namespaces":
        return OutsideError(f"namespace {namespace} does not exist", hint="create it first")
    if kserve:
        return OutsideError(
            "the cluster does not have KServe (no InferenceService)",
            hint="omit --kserve for a Deployment and a Service, or install KServe",
        )
    return error


def _is_current(pod: Pod, workload: _ServedWorkload) -> bool:
    """Return whether a pod is of the version that was applied last."""
    template = workload.spec.template.metadata.get("labels", {})
    wanted = {**template, **workload.spec.predictor.labels}.get(REVISION_LABEL)
    return pod.metadata.labels.get(REVISION_LABEL) == wanted


def _build_view(workload: _ServedWorkload, pods: Sequence[Pod]) -> ServedModelView:
    metadata, status = workload.metadata, workload.status
    conditions = {condition.type: condition for condition in status.conditions}
    served = tuple(_build_pod(pod, current=_is_current(pod, workload)) for pod in pods)
    is_kserve = workload.kind == INFERENCE_SERVICES.kind or bool(workload.spec.predictor.labels)
    seen = status.observed_generation >= metadata.generation
    reason = ""
    if is_kserve:
        ready = sum(pod.state == "Ready" for pod in served)
        wanted = workload.spec.predictor.min_replicas
        condition = conditions.get("Ready", _WorkloadCondition("Ready"))
        done, answers = seen and condition.status == "True", condition.status == "True"
        reason = condition.message or condition.reason
        url = status.url
    else:
        wanted, ready = workload.spec.replicas, status.available_replicas
        # As `kubectl rollout status` decides.
        done = seen and status.updated_replicas == status.replicas == ready == wanted
        answers = ready > 0
        url = f"http://{metadata.name}.{metadata.namespace}.svc"
    waiting = [pod.reason for pod in served if pod.current and pod.reason]
    waiting += _list_failures(status)
    return ServedModelView(
        name=metadata.name,
        namespace=metadata.namespace,
        kind=INFERENCE_SERVICES.kind if is_kserve else DEPLOYMENTS.kind,
        image=_escape_text(metadata.annotations.get(IMAGE_ANNOTATION, "")),
        state="Ready" if done else "Updating" if answers else "NotReady",
        ready=ready,
        replicas=wanted,
        url=_escape_text(url),
        reason="" if done else _escape_text(waiting[0] if waiting else reason),
        created=metadata.creation_timestamp,
        pods=served,
    )


def _list_failures(status: _WorkloadStatus) -> list[str]:
    return [
        f"{condition.reason}: {condition.message}"
        for condition in status.conditions
        if (condition.type, condition.status) == ("ReplicaFailure", "True")
        or condition.reason == "ProgressDeadlineExceeded"
    ]


def _build_pod(pod: Pod, *, current: bool) -> ServedPod:
    conditions = {condition.type: condition.status for condition in pod.status.conditions}
    reason = waiting_reason(pod)
    if pod.metadata.deletion_timestamp is not None:
        state = "Terminating"
    elif conditions.get("Ready") == "True":
        state = "Ready"
    elif reason or pod.status.phase != "Running":
        state = pod.status.phase or "Pending"
    else:
        state = "Starting"
    return ServedPod(
        name=pod.metadata.name,
        state=state,
        restarts=sum(status.restart_count for status in pod.status.container_statuses),
        reason=_escape_text(reason),
        current=current,
    )


def _decode_line(line: PodLogLine) -> str:
    return strip_control_sequences(line.data.decode(errors="replace"))


def _escape_text(text: str) -> str:
    return escape_unprintable(" ".join(text.split()), limit=1000)
