"""The builtin kinds, with those of their own rules that programs meet."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from danlu.testing.kubernetes.kinds import Kind, ListShape, Rules, Scale, Shape
from danlu.testing.kubernetes.refusals import Cause, required

__all__ = ["BUILTIN", "META"]

Object = dict[str, Any]
_by = ListShape

META: Shape = {
    ("metadata", "ownerReferences"): _by(("uid",)),
    ("metadata", "finalizers"): _by(is_set=True),
}
_PORTS = _by(
    ("containerPort", "protocol"), strategic=("containerPort",), defaults={"protocol": "TCP"}
)


def _pod_shape(*above: str) -> Shape:
    found = {
        (*above, "volumes"): _by(("name",)),
        (*above, "imagePullSecrets"): _by(("name",)),
        (*above, "hostAliases"): _by(("ip",)),
    }
    for name in ("containers", "initContainers"):
        item = (*above, name, "*")
        found |= {
            (*above, name): _by(("name",)),
            (*item, "env"): _by(("name",)),
            (*item, "ports"): _PORTS,
            (*item, "volumeMounts"): _by(("mountPath",)),
        }
    return found


def _prepare_pod(new: Object, old: Object | None) -> None:
    spec = new.setdefault("spec", {})
    for name, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("securityContext", {}),
        ("enableServiceLinks", True),
    ):
        spec.setdefault(name, value)
    for container in [*spec.get("containers", ()), *spec.get("initContainers", ())]:
        for port in container.get("ports", ()):
            port.setdefault("protocol", "TCP")
        container.setdefault("resources", {})
        container.setdefault("imagePullPolicy", "Always")
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
    if old is None:
        new["status"] = {"phase": "Pending", "qosClass": "BestEffort"}


def _check_pod(new: Object, old: Object | None) -> Sequence[Cause]:
    spec = new["spec"]
    if not spec.get("containers"):
        return [required("spec.containers")]
    causes = [
        required(f"spec.containers[{number}].{name}")
        for number, container in enumerate(spec["containers"])
        for name in ("name", "image")
        if not container.get(name)
    ]
    if old is not None and _fixed(spec) != _fixed(old["spec"]):
        message = (
            "Forbidden: pod updates may not change fields other than "
            "`spec.containers[*].image`,`spec.initContainers[*].image`,"
            "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
            "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
            "previously negative)"
        )
        causes.append({"reason": "FieldValueForbidden", "message": message, "field": "spec"})
    return causes


def _fixed(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    kept = {
        name: value
        for name, value in spec.items()
        # nodeName is set through the binding, schedulingGates by who holds the pod back.
        if name not in ("activeDeadlineSeconds", "tolerations", "nodeName", "schedulingGates")
    }
    for name in ("containers", "initContainers"):
        kept[name] = [{**one, "image": ""} for one in spec.get(name) or ()]
    return kept


def _pod_grace(pod: Object, asked: int | None) -> int:
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(pod["spec"]["terminationGracePeriodSeconds"] if asked is None else asked)


def _pod_fields(pod: Object) -> Mapping[str, str]:
    spec, status = pod.get("spec", {}), pod.get("status", {})
    return {
        **{
            f"spec.{name}": str(spec.get(name, ""))
            for name in ("nodeName", "restartPolicy", "schedulerName", "serviceAccountName")
        },
        "status.phase": status.get("phase", ""),
        "status.podIP": status.get("podIP", ""),
    }


def _prepare_service(new: Object, old: Object | None) -> None:
    spec = new.setdefault("spec", {})
    for name, value in (("type", "ClusterIP"), ("sessionAffinity", "None")):
        spec.setdefault(name, value)
    for port in spec.get("ports", ()):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])
    if old is not None and not spec.get("clusterIP"):
        spec["clusterIP"] = old["spec"].get("clusterIP", "None")
    if not spec.get("clusterIP"):
        spec["clusterIP"] = f"10.0.{random.randrange(256)}.{random.randrange(1, 255)}"
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    new.setdefault("status", {"loadBalancer": {}})


def _check_service(new: Object, old: Object | None) -> Sequence[Cause]:
    spec = new["spec"]
    if not spec.get("ports") and spec["clusterIP"] != "None":
        return [required("spec.ports")]
    if old is not None and spec["clusterIP"] != old["spec"]["clusterIP"]:
        value = spec["clusterIP"]
        message = f'Invalid value: "{value}": field is immutable'
        return [{"reason": "FieldValueInvalid", "message": message, "field": "spec.clusterIPs[0]"}]
    return []


def _prepare_namespace(new: Object, old: Object | None) -> None:
    if old is None:
        new["spec"] = {"finalizers": ["kubernetes"]}
        new["status"] = {"phase": "Active"}
        labels = new["metadata"].setdefault("labels", {})
        labels["kubernetes.io/metadata.name"] = new["metadata"]["name"]


def _phase(obj: Object) -> Mapping[str, str]:
    return {"status.phase": obj.get("status", {}).get("phase", "")}


def _prepare_secret(new: Object, old: Object | None) -> None:
    import base64

    for name, value in (new.pop("stringData", None) or {}).items():
        new.setdefault("data", {})[name] = base64.b64encode(value.encode()).decode()
    new.setdefault("type", "Opaque")


def _check_immutable(new: Object, old: Object | None) -> Sequence[Cause]:
    if old is None or not old.get("immutable"):
        return []
    return [
        {
            "reason": "FieldValueForbidden",
            "message": "Forbidden: field is immutable when `immutable` is set",
            "field": name,
        }
        for name in ("data", "immutable")
        if new.get(name) != old.get(name)
    ]


def _event_fields(event: Object) -> Mapping[str, str]:
    about = event.get("involvedObject", {})
    names = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    return {
        **{f"involvedObject.{name}": about.get(name, "") for name in names},
        "reason": event.get("reason", ""),
        "reportingComponent": event.get("reportingComponent", ""),
        "type": event.get("type", ""),
    }


def _secret_fields(secret: Object) -> Mapping[str, str]:
    return {"type": secret.get("type", "")}


_RBAC = "rbac.authorization.k8s.io"
_SCALE = Scale(".spec.replicas", ".status.replicas", ".status.selector")
_WORKLOAD = Rules(counts_generations=True)

BUILTIN: tuple[Kind, ...] = (
    Kind(
        "",
        "v1",
        "pods",
        "Pod",
        status=True,
        rules=Rules(_prepare_pod, _check_pod, _pod_grace, _pod_fields, True, False, True, False),
        shape={**META, **_pod_shape("spec"), ("status", "conditions"): _by(("type",))},
        short_names=("po",),
    ),
    Kind(
        "",
        "v1",
        "services",
        "Service",
        status=True,
        rules=Rules(_prepare_service, _check_service, returns_deleted=True),
        shape={
            **META,
            ("spec", "ports"): _by(
                ("port", "protocol"), strategic=("port",), defaults={"protocol": "TCP"}
            ),
        },
        short_names=("svc",),
    ),
    Kind(
        "",
        "v1",
        "configmaps",
        "ConfigMap",
        rules=Rules(check=_check_immutable),
        shape=META,
        short_names=("cm",),
    ),
    Kind(
        "",
        "v1",
        "secrets",
        "Secret",
        rules=Rules(_prepare_secret, _check_immutable, fields=_secret_fields),
        shape=META,
    ),
    Kind(
        "",
        "v1",
        "namespaces",
        "Namespace",
        False,
        status=True,
        rules=Rules(_prepare_namespace, fields=_phase),
        shape=META,
        short_names=("ns",),
    ),
    Kind("", "v1", "nodes", "Node", False, status=True, shape=META, short_names=("no",)),
    Kind(
        "",
        "v1",
        "serviceaccounts",
        "ServiceAccount",
        rules=Rules(returns_deleted=True),
        shape={
            **META,
            ("secrets",): _by(("name",)),
            ("imagePullSecrets",): _by((), strategic=("name",)),
        },
        short_names=("sa",),
    ),
    Kind(
        "",
        "v1",
        "events",
        "Event",
        rules=Rules(fields=_event_fields, create_on_update=True),
        shape=META,
        short_names=("ev",),
    ),
    Kind(
        "coordination.k8s.io",
        "v1",
        "leases",
        "Lease",
        rules=Rules(create_on_update=True, unconditional_update=False),
        shape=META,
    ),
    Kind(_RBAC, "v1", "roles", "Role", shape=META),
    Kind(_RBAC, "v1", "rolebindings", "RoleBinding", shape=META),
    Kind(_RBAC, "v1", "clusterroles", "ClusterRole", False, shape=META),
    Kind(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, shape=META),
    Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, shape=META),
    Kind(
        "apps",
        "v1",
        "deployments",
        "Deployment",
        status=True,
        scale=_SCALE,
        rules=_WORKLOAD,
        shape={**META, **_pod_shape("spec", "template", "spec")},
        short_names=("deploy",),
    ),
    Kind(
        "autoscaling",
        "v2",
        "horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
        status=True,
        shape=META,
        short_names=("hpa",),
    ),
    Kind(
        "policy",
        "v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        status=True,
        rules=_WORKLOAD,
        shape=META,
        short_names=("pdb",),
    ),
    Kind(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        False,
        status=True,
        rules=_WORKLOAD,
        shape=META,
        short_names=("crd", "crds"),
    ),
)
