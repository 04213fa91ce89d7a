"""The objects of a served model on Kubernetes; pure.

Either a Deployment with its Service and, for a range of replicas, a HorizontalPodAutoscaler, or
KServe's ServingRuntime and InferenceService.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping

import msgspec

from danlu.errors import UsageError
from danlu.kube.resources import (
    DEPLOYMENTS,
    HORIZONTAL_POD_AUTOSCALERS,
    SERVICES,
    Resource,
)
from danlu.kube.types import Manifest
from danlu.util.dns_label import is_dns_1035_label

#: Labels of every object and pod of a served model.
MANAGED_LABELS = {
    "app.kubernetes.io/managed-by": "danlu",
    "app.kubernetes.io/component": "model-server",
}
#: The name of the model; the label selects its objects and its pods.
NAME_LABEL = "dev.danlu.served"
#: Identifies what a pod was made from, which differs from that of an earlier version.
REVISION_LABEL = "dev.danlu.revision"
#: The image as the user named it.
IMAGE_ANNOTATION = "dev.danlu.image"

#: KServe takes its container from the others by this name.
CONTAINER = "kserve-container"
PORT = 8080
SERVICE_PORT = 80

_KSERVE = "serving.kserve.io"
SERVING_RUNTIMES = Resource(_KSERVE, "v1alpha1", "servingruntimes", "ServingRuntime", Manifest)
INFERENCE_SERVICES = Resource(_KSERVE, "v1beta1", "inferenceservices", "InferenceService", Manifest)
_MODEL_FORMAT = "danlu"
#: Fields of a container that Knative refuses.
_NOT_OF_KNATIVE = ("lifecycle", "startupProbe")
#: Fields of a pod that a ServingRuntime has as well.
_RUNTIME_FIELDS = ("imagePullSecrets", "nodeSelector", "tolerations")

#: Until proxies and nodes know that a pod ends, they send it requests, which it must accept.
DRAIN_SECONDS = 5
#: A server accepts requests for 5 s after SIGTERM; the rest is to spare.
_GRACE_MARGIN = 10
_STARTUP_PERIOD, _STARTUP_ATTEMPTS = 2, 300
_PROGRESS_SECONDS = _STARTUP_PERIOD * _STARTUP_ATTEMPTS + 120
_CPU_PERCENT = 70
_GPU_RESOURCE = "nvidia.com/gpu"


class ReplicaRange(msgspec.Struct, frozen=True):
    """How many replicas there are; with ``most`` above ``least`` as many as the load needs."""

    least: int = 1
    most: int = 1

    @property
    def is_constant(self) -> bool:
        """Whether the number does not depend on the load."""
        return self.least == self.most

    def __str__(self) -> str:
        return str(self.least) if self.is_constant else f"{self.least}-{self.most}"


class ModelDeployment(msgspec.Struct, frozen=True):
    """A model to serve.

    Attributes:
        image: By digest, as nodes pull it.
        image_name: The image as the user named it.
        command: The server's command line.
        timeout: Seconds that a request may take, which a pod that ends waits for.
        cpu: Cores that a pod requests; None for no request.
        memory: Bytes that a pod requests and may use; None for no limit.
        grpc_port: The server's port for gRPC, and the Service's; None for none.
    """

    name: str
    namespace: str
    image: str
    image_name: str
    command: tuple[str, ...]
    timeout: float = 60.0
    replicas: ReplicaRange = ReplicaRange()
    cpu: float | None = None
    memory: int | None = None
    gpus: int = 0
    grpc_port: int | None = None
    live_path: str = "/v2/health/live"
    ready_path: str = "/v2/health/ready"
    pull_secret: str = ""
    node_selector: Mapping[str, str] = {}
    tolerations: tuple[Mapping[str, str | int], ...] = ()


def parse_replicas(text: str) -> ReplicaRange:
    """Parse ``2`` or ``2-10``; raise :class:`UsageError` if it is invalid."""
    match = re.fullmatch(r"([1-9]\d{0,5})(?:-([1-9]\d{0,5}))?", text)
    found = ReplicaRange(int(match[1]), int(match[2] or match[1])) if match else None
    if found is None or found.most < found.least:
        raise UsageError(
            f"invalid number of replicas {text!r}",
            hint="use a number such as 2, or a range such as 2-10",
        )
    return found


def check_name(name: str) -> str:
    """Return ``name``; raise :class:`UsageError` if a Service cannot have it."""
    if not is_dns_1035_label(name):
        raise UsageError(
            f"invalid name {name!r}",
            hint="use at most 63 lowercase letters, digits and '-', beginning with a letter",
        )
    return name


def choose_name(repository: str) -> str:
    """Return the name of a served model by the last part of its repository."""
    text = re.sub("[^a-z0-9]+", "-", repository.rpartition("/")[2].lower()).strip("-")
    return (text if text[:1].isalpha() else f"model-{text}")[:63].strip("-")


def render_deployment(model: ModelDeployment, *, current: int | None = None) -> list[Manifest]:
    """Return the Deployment and its Service, and the autoscaler of a range of replicas.

    ``current`` is the number of replicas that an existing Deployment has. With an autoscaler it is
    kept, because it would else fall to 1 for a moment; without, the manifest names no number.
    """
    replicas = model.replicas
    pod = _pod_spec(model)
    spec: Manifest = {
        "selector": {"matchLabels": {NAME_LABEL: model.name}},
        # An earlier pod ends when a new one is ready, so that no request is lost.
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
        },
        "progressDeadlineSeconds": _PROGRESS_SECONDS,
        "template": {"metadata": {"labels": _pod_labels(model, pod)}, "spec": pod},
    }
    if replicas.is_constant:
        spec["replicas"] = replicas.least
    elif current is not None:
        spec["replicas"] = min(max(current, replicas.least), replicas.most)
    ports = [{"name": "http", "port": SERVICE_PORT, "targetPort": "http"}]
    if model.grpc_port is not None:
        ports.append({"name": "grpc", "port": model.grpc_port, "targetPort": "grpc"})
    service = {"selector": {NAME_LABEL: model.name}, "ports": ports}
    documents = [
        DEPLOYMENTS.to_manifest({"metadata": _build_metadata(model), "spec": spec}),
        SERVICES.to_manifest({"metadata": _build_metadata(model), "spec": service}),
    ]
    if not replicas.is_constant:
        documents.append(_render_autoscaler(model))
    return documents


def render_kserve(model: ModelDeployment) -> list[Manifest]:
    """Return KServe's ServingRuntime and the InferenceService that uses it.

    KServe chooses how pods are started, updated and ended. They have only fields that Knative's
    services may have, too.
    """
    pod = _pod_spec(model)
    (container,) = pod["containers"]
    runtime: Manifest = {
        "supportedModelFormats": [{"name": _MODEL_FORMAT, "version": "1"}],
        "protocolVersions": ["v2", "v1"],
        "multiModel": False,
        "containers": [
            {name: value for name, value in container.items() if name not in _NOT_OF_KNATIVE}
        ],
        **{name: pod[name] for name in _RUNTIME_FIELDS if name in pod},
    }
    predictor: Manifest = {
        "labels": _pod_labels(model, runtime),
        "minReplicas": model.replicas.least,
        "maxReplicas": model.replicas.most,
        "timeout": math.ceil(model.timeout),
        "model": {
            "modelFormat": {"name": _MODEL_FORMAT},
            "runtime": model.name,
            "protocolVersion": "v2",
        },
    }
    if not model.replicas.is_constant:
        predictor |= {"scaleMetric": "cpu", "scaleTarget": _CPU_PERCENT}
    spec = {"predictor": predictor}
    return [
        SERVING_RUNTIMES.to_manifest({"metadata": _build_metadata(model), "spec": runtime}),
        INFERENCE_SERVICES.to_manifest({"metadata": _build_metadata(model), "spec": spec}),
    ]


def _build_metadata(model: ModelDeployment) -> Manifest:
    return {
        "name": model.name,
        "namespace": model.namespace,
        "labels": {**MANAGED_LABELS, "app.kubernetes.io/name": model.name, NAME_LABEL: model.name},
        "annotations": {IMAGE_ANNOTATION: model.image_name},
    }


def _pod_labels(model: ModelDeployment, spec: Manifest) -> dict[str, str]:
    revision = hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:12]
    return {**_build_metadata(model)["labels"], REVISION_LABEL: revision}


def _pod_spec(model: ModelDeployment) -> Manifest:
    ports = [{"name": "http", "containerPort": PORT, "protocol": "TCP"}]
    if model.grpc_port is not None:
        ports.append({"name": "grpc", "containerPort": model.grpc_port, "protocol": "TCP"})
    container: Manifest = {
        "name": CONTAINER,
        "image": model.image,
        "command": list(model.command),
        "ports": ports,
        "startupProbe": {
            **_http_probe(model.ready_path),
            "periodSeconds": _STARTUP_PERIOD,
            "failureThreshold": _STARTUP_ATTEMPTS,
        },
        "readinessProbe": {**_http_probe(model.ready_path), "periodSeconds": 5},
        # A long call of the predictor is not a reason to end the server: it has its own limit.
        "livenessProbe": {
            **_http_probe(model.live_path),
            "periodSeconds": 10,
            "failureThreshold": 6,
        },
        "lifecycle": {"preStop": {"sleep": {"seconds": DRAIN_SECONDS}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if resources := _render_resources(model):
        container["resources"] = resources
    spec: Manifest = {
        # The server gets no access to the API server, nor variables for each Service.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": DRAIN_SECONDS + math.ceil(model.timeout) + _GRACE_MARGIN,
        "containers": [container],
    }
    if model.pull_secret:
        spec["imagePullSecrets"] = [{"name": model.pull_secret}]
    if model.node_selector:
        spec["nodeSelector"] = dict(model.node_selector)
    if model.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in model.tolerations]
    return spec


def _http_probe(path: str) -> Manifest:
    return {"httpGet": {"path": path, "port": "http"}, "timeoutSeconds": 5}


def _render_resources(model: ModelDeployment) -> Manifest:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if model.cpu is not None:
        # No limit: it would slow down a server on a node that is idle.
        requests["cpu"] = f"{round(model.cpu * 1000)}m"
    if model.memory is not None:
        requests["memory"] = limits["memory"] = str(model.memory)
    if model.gpus:
        limits[_GPU_RESOURCE] = str(model.gpus)
    resources = {"requests": requests, "limits": limits}
    return {name: value for name, value in resources.items() if value}


def _render_autoscaler(model: ModelDeployment) -> Manifest:
    target = {"type": "Utilization", "averageUtilization": _CPU_PERCENT}
    spec = {
        "scaleTargetRef": {
            "apiVersion": DEPLOYMENTS.api_version,
            "kind": DEPLOYMENTS.kind,
            "name": model.name,
        },
        "minReplicas": model.replicas.least,
        "maxReplicas": model.replicas.most,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
    }
    return HORIZONTAL_POD_AUTOSCALERS.to_manifest(
        {"metadata": _build_metadata(model), "spec": spec}
    )
