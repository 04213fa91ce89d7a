"""How an environment's pod is created, and the objects that are created with it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.gpu.selection import parse_gpus
from danlu.engine.kubernetes.scripts import HOLD_SCRIPT, RUN_DIRECTORY
from danlu.errors import UsageError
from danlu.graph.processor_level import render_node_terms
from danlu.kube.resources import PERSISTENT_VOLUME_CLAIMS, PODS
from danlu.kube.types import Manifest
from danlu.sandbox.types import PROJECT_DIRECTORY
from danlu.training.pod_template import require_node_terms
from danlu.util.files import write_atomic
from danlu.util.json_codec import decode, encode

CONTAINER = "environment"
NAME_LABEL = "dev.danlu.environment"
SPEC_ANNOTATION = "dev.danlu.spec"
MANAGED_LABELS = {
    "app.kubernetes.io/managed-by": "danlu",
    "app.kubernetes.io/component": "environment",
}
_SETTINGS_FILE = "kubernetes.json"
_GPU_RESOURCE = "nvidia.com/gpu"
# The length of a label's value (Kubernetes, "Labels and Selectors").
_MAX_LABEL = 63
_STOP_SECONDS = 5


class PodVolume(msgspec.Struct, frozen=True):
    """A PersistentVolumeClaim of the namespace, mounted at ``target``."""

    claim: str
    target: str
    readonly: bool = False


class PodUser(msgspec.Struct, frozen=True):
    """The user of all programs in the pod."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()


class PodSettings(msgspec.Struct, frozen=True):
    """What is known of an environment's pod before it is created.

    Attributes:
        name: The pod's name; it and the claim's stay the same when the environment is renamed.
        context: The context of the kubeconfig; empty for a pod's service account.
        image: By digest, as nodes pull it.
        claim: The claim with the project's files; empty if they are lost with the pod.
        idle: Seconds after which the pod ends by itself if no supervisor has renewed it.
        warnings: What the cluster could not provide.
        architecture: What the image's programs need of a node's processor, and
        level: the level that they need, if any.
        is_created: Whether anything may have been created in the cluster.
        is_new: Whether the pod was created by the command that starts the supervisor.
    """

    name: str
    context: str
    namespace: str
    image: str
    user: PodUser = PodUser()
    pull_secret: str = ""
    claim: str = ""
    volumes: tuple[PodVolume, ...] = ()
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, str | int], ...] = ()
    architecture: str = ""
    level: str = ""
    idle: int = 3600
    warnings: tuple[str, ...] = ()
    is_created: bool = False
    is_new: bool = False


def find_settings(environment: EnvironmentDirectory) -> PodSettings | None:
    """Return the settings of an environment; None if it was never prepared."""
    try:
        return read_settings(environment)
    except FileNotFoundError:
        return None


def read_settings(environment: EnvironmentDirectory) -> PodSettings:
    """Read the settings that the command which starts the supervisor has written."""
    return decode((environment.directory / _SETTINGS_FILE).read_bytes(), PodSettings)


def write_settings(environment: EnvironmentDirectory, settings: PodSettings) -> None:
    """Write the settings; readable by their owner only."""
    write_atomic(environment.directory / _SETTINGS_FILE, encode(settings), mode=0o600)


def render_labels(environment: str) -> dict[str, str]:
    """Return the labels of all objects of an environment."""
    return {**MANAGED_LABELS, NAME_LABEL: environment[:_MAX_LABEL].rstrip("-._")}


def count_gpus(gpus: str) -> int:
    """Return the number of GPUs that a value of ``--gpus`` asks for.

    Raises :class:`UsageError` unless it is a number: the cluster chooses the GPUs.
    """
    selection = parse_gpus(gpus)
    if not selection:
        return 0
    if selection.every or selection.names:
        raise UsageError(
            f"--gpus {gpus}: the cluster chooses the GPUs of a pod",
            hint="use a number, such as --gpus 1",
        )
    return selection.count


def render_pod(spec: EnvironmentSpec, settings: PodSettings) -> Manifest:
    """Return the pod of an environment; an annotation identifies what it was made of."""
    user = settings.user
    security: Manifest = {"runAsUser": user.uid, "runAsGroup": user.gid}
    group: Manifest = {"supplementalGroups": list(user.groups)} if user.groups else {}
    if user.gid:
        group["fsGroup"] = user.gid
        # By default the kubelet changes the group of every file of a volume at every start.
        group["fsGroupChangePolicy"] = "OnRootMismatch"
    variables = {"DANLU_ENVIRONMENT": spec.name, **spec.environment}
    volumes, mounts = _render_volumes(spec, settings)
    container = {
        "name": CONTAINER,
        "image": settings.image,
        "command": ["/bin/sh", "-c", HOLD_SCRIPT, "danlu", str(settings.idle)],
        "env": [{"name": name, "value": value} for name, value in sorted(variables.items())],
        "resources": _render_resources(spec),
        "securityContext": security,
        "volumeMounts": mounts,
    }
    if spec.project:
        container["workingDir"] = PROJECT_DIRECTORY
    fields: Manifest = {
        "restartPolicy": "Never",
        # Programs of an environment get no access to the API server.
        "automountServiceAccountToken": False,
        # Nor variables for each Service of the namespace.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _STOP_SECONDS,
        "imagePullSecrets": [{"name": settings.pull_secret}] if settings.pull_secret else [],
        "nodeSelector": settings.node_selector,
        "tolerations": list(settings.tolerations),
        "securityContext": group,
        "containers": [container],
        "volumes": volumes,
    }
    if settings.architecture:
        fields = require_node_terms(
            fields, render_node_terms(settings.architecture, settings.level)
        )
    digest = hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:32]
    metadata = {
        "name": settings.name,
        "namespace": settings.namespace,
        "labels": render_labels(spec.name),
        "annotations": {SPEC_ANNOTATION: digest},
    }
    return PODS.to_manifest({"metadata": metadata, "spec": fields})


def _render_resources(spec: EnvironmentSpec) -> Manifest:
    limits: dict[str, str] = {}
    if spec.limits.cpu is not None:
        limits["cpu"] = f"{round(spec.limits.cpu * 1000)}m"
    if spec.limits.memory is not None:
        limits["memory"] = str(spec.limits.memory)
    if gpus := count_gpus(spec.gpus):
        limits[_GPU_RESOURCE] = str(gpus)
    return {"limits": limits} if limits else {}


def _render_volumes(
    spec: EnvironmentSpec, settings: PodSettings
) -> tuple[list[Manifest], list[Manifest]]:
    """Return the volumes, and where they are mounted."""
    memory = {"medium": "Memory"}
    volumes: list[Manifest] = [{"name": "run", "emptyDir": {**memory, "sizeLimit": "16Mi"}}]
    mounts: list[Manifest] = [{"name": "run", "mountPath": RUN_DIRECTORY}]
    if spec.shm_size:
        volumes.append({"name": "shm", "emptyDir": {**memory, "sizeLimit": str(spec.shm_size)}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    if spec.project:
        mount: Manifest = {"name": "project", "mountPath": PROJECT_DIRECTORY}
        source: Manifest = {"emptyDir": {}}
        if settings.claim:
            source = {"persistentVolumeClaim": {"claimName": settings.claim}}
            # The root of a file system may have a directory lost+found.
            mount["subPath"] = "workspace"
        volumes.append({"name": "project", **source})
        mounts.append(mount)
    claims = {volume.claim: f"volume-{index}" for index, volume in enumerate(settings.volumes)}
    for claim, name in claims.items():
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
    for volume in settings.volumes:
        mounts.append(
            {
                "name": claims[volume.claim],
                "mountPath": volume.target,
                "readOnly": volume.readonly,
            }
        )
    return volumes, mounts


def render_claim(
    name: str, namespace: str, size: str, storage_class: str, labels: Mapping[str, str]
) -> Manifest:
    """Return a claim of a volume that one node at a time may use."""
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    }
    if storage_class:
        spec["storageClassName"] = storage_class
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels)}
    return PERSISTENT_VOLUME_CLAIMS.to_manifest({"metadata": metadata, "spec": spec})
