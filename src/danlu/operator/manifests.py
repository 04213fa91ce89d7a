"""The manifests that install the operator, for ``kubectl apply``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from danlu.kube.types import Manifest
from danlu.operator.crds import custom_resource_definitions
from danlu.operator.flags import format_arguments
from danlu.operator.rbac import editor_rules, operator_rules, viewer_rules
from danlu.operator.types import OperatorSettings
from danlu.training.framework import Framework

NAME = "danlu-operator"
NAMESPACE = "danlu-system"
_RBAC = "rbac.authorization.k8s.io"
_CONFIG_DIRECTORY = "/etc/danlu"
_CONFIG_FILE = "decorators.yaml"
#: The conventional "nonroot" UID: the operator's image needs no user.
_USER = 65532


@dataclass(frozen=True, kw_only=True)
class InstallOptions:
    """What to install.

    Attributes:
        image: An image that contains danlu.
        replicas: With more than one, the others are on standby.
        decorators: The contents of a ``--decorator-config`` file, installed as a ConfigMap.
        pull_secret: A Secret in ``namespace`` for the registry of the image.
        command: How to run danlu in the image.
    """

    image: str
    settings: OperatorSettings
    namespace: str = NAMESPACE
    replicas: int = 1
    decorators: str = ""
    pull_secret: str = ""
    command: tuple[str, ...] = ("danlu",)


def install_manifests(
    frameworks: Iterable[Framework], options: InstallOptions
) -> tuple[Manifest, ...]:
    """Return the objects in the order in which they can be created, the CRDs first."""
    known = sorted(frameworks, key=lambda framework: framework.plural)
    kinds = options.settings.kinds
    enabled = [framework for framework in known if not kinds or framework.kind in kinds]
    return (
        *custom_resource_definitions(enabled),
        _build_object("v1", "Namespace", options.namespace),
        _build_object("v1", "ServiceAccount", NAME, options.namespace),
        *_role_manifests(enabled, options),
        *_user_roles(known),
        *_config_maps(options),
        *_service_manifests(options),
        _deployment_manifest(options),
    )


# -- RBAC -----------------------------------------------------------------------------------------


def _role_manifests(frameworks: Sequence[Framework], options: InstallOptions) -> Iterator[Manifest]:
    needed = operator_rules(frameworks, options.settings)
    namespace = options.settings.namespace
    yield from _role_and_binding(NAME, needed.jobs, options, namespace=namespace)
    if needed.cluster:
        yield from _role_and_binding(f"{NAME}-cluster", needed.cluster, options, namespace="")
    if needed.own:
        yield from _role_and_binding(
            f"{NAME}-own", needed.own, options, namespace=options.namespace
        )


def _role_and_binding(
    name: str, rules: Sequence[Manifest], options: InstallOptions, *, namespace: str
) -> Iterator[Manifest]:
    """Yield a role and its binding, cluster-wide if ``namespace`` is empty."""
    kind = "Role" if namespace else "ClusterRole"
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": options.namespace}
    yield _build_object(f"{_RBAC}/v1", kind, name, namespace, rules=list(rules))
    yield _build_object(
        f"{_RBAC}/v1",
        f"{kind}Binding",
        name,
        namespace,
        subjects=[account],
        roleRef={"apiGroup": _RBAC, "kind": kind, "name": name},
    )


def _user_roles(frameworks: Sequence[Framework]) -> Iterator[Manifest]:
    """Yield the roles that are aggregated into the built-in roles view, edit and admin."""
    for name, rules, roles in (
        ("danlu-training-view", viewer_rules(frameworks), ("view",)),
        ("danlu-training-edit", editor_rules(frameworks), ("edit", "admin")),
    ):
        role = _build_object(f"{_RBAC}/v1", "ClusterRole", name, rules=list(rules))
        labels = {f"{_RBAC}/aggregate-to-{role_name}": "true" for role_name in roles}
        role["metadata"]["labels"] |= labels
        yield role


# -- the operator ---------------------------------------------------------------------------------


def _config_maps(options: InstallOptions) -> Iterator[Manifest]:
    if options.decorators:
        data = {_CONFIG_FILE: options.decorators}
        yield _build_object("v1", "ConfigMap", f"{NAME}-decorators", options.namespace, data=data)


def _service_manifests(options: InstallOptions) -> Iterator[Manifest]:
    """Yield the Services of metrics and of the report server."""
    for name, address in (
        ("metrics", options.settings.metrics_address),
        ("reports", options.settings.reports_address),
    ):
        if address:
            port = {"name": name, "port": _port_number(address), "targetPort": name}
            spec = {"selector": _object_labels(), "ports": [port]}
            yield _build_object("v1", "Service", f"{NAME}-{name}", options.namespace, spec=spec)


def _deployment_manifest(options: InstallOptions) -> Manifest:
    pod: Manifest = {
        "serviceAccountName": NAME,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": 45,
        "containers": [_container_spec(options)],
        "volumes": _pod_volumes(options),
    }
    if options.pull_secret:
        pod["imagePullSecrets"] = [{"name": options.pull_secret}]
    template: Manifest = {"metadata": {"labels": _object_labels()}, "spec": pod}
    if options.decorators:
        # A change of the file must recreate the pod.
        mark = {"danlu.dev/decorators": _text_digest(options.decorators)}
        template["metadata"]["annotations"] = mark
    return _build_object(
        "apps/v1",
        "Deployment",
        NAME,
        options.namespace,
        spec={
            "replicas": options.replicas,
            "selector": {"matchLabels": _object_labels()},
            "template": template,
        },
    )


def _container_spec(options: InstallOptions) -> Manifest:
    settings = _effective_settings(options)
    ports = [
        {"name": name, "containerPort": _port_number(address)}
        for name, address in (
            ("metrics", settings.metrics_address),
            ("health", settings.health_address),
            ("reports", settings.reports_address),
        )
        if address
    ]
    return {
        "name": "operator",
        "image": options.image,
        "command": [*options.command, "operator", "run"],
        "args": list(format_arguments(settings)),
        # The only directory that can be written: the root file system is read-only.
        "env": [{"name": "DANLU_HOME", "value": "/tmp/danlu"}],
        "ports": ports,
        "resources": {
            "requests": {"cpu": "100m", "memory": "128Mi"},
            "limits": {"memory": "512Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _volume_mounts(options),
        **_container_probes(settings),
    }


def _effective_settings(options: InstallOptions) -> OperatorSettings:
    """Return the settings with the paths and names of this installation."""
    settings = options.settings
    changes: dict[str, Any] = {}
    if options.decorators:
        changes["decorator_config"] = f"{_CONFIG_DIRECTORY}/{_CONFIG_FILE}"
    if settings.reports_address and not settings.reports_url:
        host = f"{NAME}-reports.{options.namespace}.svc"
        changes["reports_url"] = f"https://{host}:{_port_number(settings.reports_address)}"
    return msgspec.structs.replace(settings, **changes)


def _container_probes(settings: OperatorSettings) -> Manifest:
    if not settings.health_address:
        return {}
    return {
        "livenessProbe": _http_probe("/healthz", every=20),
        "readinessProbe": _http_probe("/readyz", every=5),
    }


def _http_probe(path: str, *, every: int) -> Manifest:
    # A generous timeout: a busy node must not cause a restart.
    ask = {"path": path, "port": "health"}
    return {"httpGet": ask, "periodSeconds": every, "timeoutSeconds": 5}


def _pod_volumes(options: InstallOptions) -> list[Manifest]:
    """Return a writable directory for danlu's log, and the file of decorators."""
    found: list[Manifest] = [{"name": "tmp", "emptyDir": {}}]
    if options.decorators:
        found.append({"name": "decorators", "configMap": {"name": f"{NAME}-decorators"}})
    return found


def _volume_mounts(options: InstallOptions) -> list[Manifest]:
    found = [{"name": "tmp", "mountPath": "/tmp"}]
    if options.decorators:
        found.append({"name": "decorators", "mountPath": _CONFIG_DIRECTORY})
    return found


def _text_digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _port_number(address: str) -> int:
    return int(address.rpartition(":")[2])


def _object_labels() -> dict[str, str]:
    return {"app.kubernetes.io/name": NAME}


def _build_object(
    api_version: str, kind: str, name: str, namespace: str = "", **fields: Any
) -> Manifest:
    place = {"namespace": namespace} if namespace else {}
    metadata = {"name": name, **place, "labels": _object_labels()}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}
