"""Everything a cluster needs to run the operator, as documents for ``kubectl apply``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from danlu.kube.types import Document
from danlu.operator.crds import definitions
from danlu.operator.flags import arguments
from danlu.operator.rbac import editors, rights, viewers
from danlu.operator.types import OperatorSettings
from danlu.training.framework import Framework

__all__ = ["NAME", "NAMESPACE", "Deployed", "manifests"]

NAME = "danlu-operator"
NAMESPACE = "danlu-system"
_RBAC = "rbac.authorization.k8s.io"
_CONFIG_DIRECTORY = "/etc/danlu"
_CONFIG_FILE = "decorators.yaml"
#: Nobody: the operator's image needs no user of its own.
_USER = 65532


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """What is to be deployed: ``image`` has danlu in it, as its ``command``.

    ``replicas`` above one stand by. ``decorators`` is the text of a file of decorators, kept in a
    ConfigMap. ``pull_secret`` is a Secret of ``namespace`` for the image's registry.
    """

    image: str
    settings: OperatorSettings
    namespace: str = NAMESPACE
    replicas: int = 1
    decorators: str = ""
    pull_secret: str = ""
    command: tuple[str, ...] = ("danlu",)


def manifests(frameworks: Iterable[Framework], wanted: Deployed) -> tuple[Document, ...]:
    """The objects in the order in which they can be made, the definitions first."""
    known = sorted(frameworks, key=lambda one: one.plural)
    kinds = wanted.settings.kinds
    return (
        *definitions(one for one in known if not kinds or one.kind in kinds),
        _object("v1", "Namespace", wanted.namespace),
        _object("v1", "ServiceAccount", NAME, wanted.namespace),
        *_roles(known, wanted),
        *_users(known),
        *_config(wanted),
        *_services(wanted),
        _deployment(wanted),
    )


# -- rights ---------------------------------------------------------------------------------------


def _roles(frameworks: Sequence[Framework], wanted: Deployed) -> Iterator[Document]:
    needed = rights(frameworks, wanted.settings)
    space = wanted.settings.namespace
    yield from _bound(NAME, needed.jobs, wanted, space=space)
    if needed.own:
        yield from _bound(f"{NAME}-own", needed.own, wanted, space=wanted.namespace)


def _bound(
    name: str, rules: Sequence[Document], wanted: Deployed, *, space: str
) -> Iterator[Document]:
    """A role and its binding, of the whole cluster where ``space`` is empty."""
    kind = "Role" if space else "ClusterRole"
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": wanted.namespace}
    yield _object(f"{_RBAC}/v1", kind, name, space, rules=list(rules))
    yield _object(
        f"{_RBAC}/v1",
        f"{kind}Binding",
        name,
        space,
        subjects=[account],
        roleRef={"apiGroup": _RBAC, "kind": kind, "name": name},
    )


def _users(frameworks: Sequence[Framework]) -> Iterator[Document]:
    """What the cluster's own roles ``view``, ``edit`` and ``admin`` are given."""
    for name, rules, roles in (
        ("danlu-training-view", viewers(frameworks), ("view",)),
        ("danlu-training-edit", editors(frameworks), ("edit", "admin")),
    ):
        role = _object(f"{_RBAC}/v1", "ClusterRole", name, rules=list(rules))
        labels = {f"{_RBAC}/aggregate-to-{one}": "true" for one in roles}
        role["metadata"]["labels"] |= labels
        yield role


# -- the program ----------------------------------------------------------------------------------


def _config(wanted: Deployed) -> Iterator[Document]:
    if wanted.decorators:
        data = {_CONFIG_FILE: wanted.decorators}
        yield _object("v1", "ConfigMap", f"{NAME}-decorators", wanted.namespace, data=data)


def _services(wanted: Deployed) -> Iterator[Document]:
    """Those that are asked for over the network: metrics, and reports of replicas."""
    for name, address in (
        ("metrics", wanted.settings.metrics_address),
        ("reports", wanted.settings.reports_address),
    ):
        if address:
            port = {"name": name, "port": _port(address), "targetPort": name}
            spec = {"selector": _labels(), "ports": [port]}
            yield _object("v1", "Service", f"{NAME}-{name}", wanted.namespace, spec=spec)


def _deployment(wanted: Deployed) -> Document:
    pod: Document = {
        "serviceAccountName": NAME,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": 45,
        "containers": [_container(wanted)],
        "volumes": _volumes(wanted),
    }
    if wanted.pull_secret:
        pod["imagePullSecrets"] = [{"name": wanted.pull_secret}]
    template: Document = {"metadata": {"labels": _labels()}, "spec": pod}
    if wanted.decorators:
        # Another file is another pod.
        mark = {"danlu.dev/decorators": _mark(wanted.decorators)}
        template["metadata"]["annotations"] = mark
    return _object(
        "apps/v1",
        "Deployment",
        NAME,
        wanted.namespace,
        spec={
            "replicas": wanted.replicas,
            "selector": {"matchLabels": _labels()},
            "template": template,
        },
    )


def _container(wanted: Deployed) -> Document:
    settings = _settled(wanted)
    ports = [
        {"name": name, "containerPort": _port(address)}
        for name, address in (
            ("metrics", settings.metrics_address),
            ("health", settings.health_address),
            ("reports", settings.reports_address),
        )
        if address
    ]
    return {
        "name": "operator",
        "image": wanted.image,
        "command": [*wanted.command, "operator", "run"],
        "args": list(arguments(settings)),
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
        "volumeMounts": _mounts(wanted),
        **_probes(settings),
    }


def _settled(wanted: Deployed) -> OperatorSettings:
    """The settings with what only a deployment knows: its names, its files."""
    settings = wanted.settings
    changes: dict[str, Any] = {}
    if wanted.decorators:
        changes["decorator_config"] = f"{_CONFIG_DIRECTORY}/{_CONFIG_FILE}"
    if settings.reports_address and not settings.reports_url:
        host = f"{NAME}-reports.{wanted.namespace}.svc"
        changes["reports_url"] = f"https://{host}:{_port(settings.reports_address)}"
    return msgspec.structs.replace(settings, **changes)


def _probes(settings: OperatorSettings) -> Document:
    if not settings.health_address:
        return {}
    return {
        "livenessProbe": _probe("/healthz", every=20),
        "readinessProbe": _probe("/readyz", every=5),
    }


def _probe(path: str, *, every: int) -> Document:
    # A node that is busy for a moment is no reason to begin anew.
    ask = {"path": path, "port": "health"}
    return {"httpGet": ask, "periodSeconds": every, "timeoutSeconds": 5}


def _volumes(wanted: Deployed) -> list[Document]:
    """A place to write for what danlu keeps of a run (its log), and the file of decorators."""
    found: list[Document] = [{"name": "tmp", "emptyDir": {}}]
    if wanted.decorators:
        found.append({"name": "decorators", "configMap": {"name": f"{NAME}-decorators"}})
    return found


def _mounts(wanted: Deployed) -> list[Document]:
    found = [{"name": "tmp", "mountPath": "/tmp"}]
    if wanted.decorators:
        found.append({"name": "decorators", "mountPath": _CONFIG_DIRECTORY})
    return found


def _mark(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _labels() -> dict[str, str]:
    return {"app.kubernetes.io/name": NAME}


def _object(api_version: str, kind: str, name: str, namespace: str = "", **fields: Any) -> Document:
    place = {"namespace": namespace} if namespace else {}
    metadata = {"name": name, **place, "labels": _labels()}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}
