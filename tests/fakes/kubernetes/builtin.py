"""The builtin kinds with their own validation rules, as far as programs meet them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.kubernetes.kinds import KindRules, ListShape, ResourceKind, ScalePaths, Shape
from tests.fakes.kubernetes.status_errors import Cause, required_cause

__all__ = ["BUILTIN", "META"]

Object = dict[str, Any]
_list_shape = ListShape

META: Shape = {
    ("metadata", "ownerReferences"): _list_shape(("uid",)),
    ("metadata", "finalizers"): _list_shape(is_set=True),
}
_PORTS = _list_shape(("containerPort",))


def _pod_shape(*above: str) -> Shape:
    results = {
        (*above, "volumes"): _list_shape(("name",)),
        (*above, "imagePullSecrets"): _list_shape(("name",)),
        (*above, "hostAliases"): _list_shape(("ip",)),
    }
    for name in ("containers", "initContainers"):
        item = (*above, name, "*")
        results |= {
            (*above, name): _list_shape(("name",)),
            (*item, "env"): _list_shape(("name",)),
            (*item, "ports"): _PORTS,
            (*item, "volumeMounts"): _list_shape(("mountPath",)),
        }
    return results


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
        return [required_cause("spec.containers")]
    causes = [
        required_cause(f"spec.containers[{number}].{name}")
        for number, container in enumerate(spec["containers"])
        for name in ("name", "image")
        if not container.get(name)
    ]
    if old is not None and _immutable_fields(spec) != _immutable_fields(old["spec"]):
        message = (
            "Forbidden: pod updates may not change fields other than "
            "`spec.containers[*].image`,`spec.initContainers[*].image`,"
            "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
            "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
            "previously negative)"
        )
        causes.append({"reason": "FieldValueForbidden", "message": message, "field": "spec"})
    return causes


def _immutable_fields(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    kept = {
        name: value
        for name, value in spec.items()
        # nodeName is set through the binding, schedulingGates by what delays the pod.
        if name not in ("activeDeadlineSeconds", "tolerations", "nodeName", "schedulingGates")
    }
    for name in ("containers", "initContainers"):
        kept[name] = [{**container, "image": ""} for container in spec.get(name) or ()]
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
        return [required_cause("spec.ports")]
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


def _phase_field(obj: Object) -> Mapping[str, str]:
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
_SCALE = ScalePaths(".spec.replicas", ".status.replicas", ".status.selector")
_WORKLOAD = KindRules(counts_generations=True)

BUILTIN: tuple[ResourceKind, ...] = (
    ResourceKind(
        "",
        "v1",
        "pods",
        "Pod",
        status=True,
        rules=KindRules(
            _prepare_pod, _check_pod, _pod_grace, _pod_fields, True, False, True, False
        ),
        shape={**META, **_pod_shape("spec"), ("status", "conditions"): _list_shape(("type",))},
        short_names=("po",),
    ),
    ResourceKind(
        "",
        "v1",
        "services",
        "Service",
        status=True,
        rules=KindRules(_prepare_service, _check_service, returns_deleted=True),
        shape={
            **META,
            ("spec", "ports"): _list_shape(("port",)),
        },
        short_names=("svc",),
    ),
    ResourceKind(
        "",
        "v1",
        "configmaps",
        "ConfigMap",
        rules=KindRules(check=_check_immutable),
        shape=META,
        short_names=("cm",),
    ),
    ResourceKind(
        "",
        "v1",
        "secrets",
        "Secret",
        rules=KindRules(_prepare_secret, _check_immutable, fields=_secret_fields),
        shape=META,
    ),
    ResourceKind(
        "",
        "v1",
        "namespaces",
        "Namespace",
        False,
        status=True,
        rules=KindRules(_prepare_namespace, fields=_phase_field),
        shape=META,
        short_names=("ns",),
    ),
    ResourceKind("", "v1", "nodes", "Node", False, status=True, shape=META, short_names=("no",)),
    ResourceKind(
        "",
        "v1",
        "serviceaccounts",
        "ServiceAccount",
        rules=KindRules(returns_deleted=True),
        shape={
            **META,
            ("secrets",): _list_shape(("name",)),
            ("imagePullSecrets",): _list_shape(("name",)),
        },
        short_names=("sa",),
    ),
    ResourceKind(
        "",
        "v1",
        "persistentvolumeclaims",
        "PersistentVolumeClaim",
        status=True,
        rules=KindRules(returns_deleted=True),
        shape=META,
        short_names=("pvc",),
    ),
    ResourceKind(
        "",
        "v1",
        "events",
        "Event",
        rules=KindRules(fields=_event_fields, create_on_update=True),
        shape=META,
        short_names=("ev",),
    ),
    ResourceKind(
        "coordination.k8s.io",
        "v1",
        "leases",
        "Lease",
        rules=KindRules(create_on_update=True, unconditional_update=False),
        shape=META,
    ),
    ResourceKind(_RBAC, "v1", "roles", "Role", shape=META),
    ResourceKind(_RBAC, "v1", "rolebindings", "RoleBinding", shape=META),
    ResourceKind(_RBAC, "v1", "clusterroles", "ClusterRole", False, shape=META),
    ResourceKind(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, shape=META),
    ResourceKind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, shape=META),
    ResourceKind(
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
    ResourceKind(
        "autoscaling",
        "v2",
        "horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
        status=True,
        shape=META,
        short_names=("hpa",),
    ),
    ResourceKind(
        "policy",
        "v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        status=True,
        rules=_WORKLOAD,
        shape=META,
        short_names=("pdb",),
    ),
    ResourceKind(
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
