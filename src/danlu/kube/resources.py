"""Resources: where an API server keeps the objects of a kind, and the type they are decoded as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from danlu.kube.types import Manifest, T

_Model = TypeVar("_Model")


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A resource by group (empty for the core group), version and plural, decoded as ``model``."""

    group: str
    version: str
    plural: str
    kind: str
    model: type[T]
    namespaced: bool = True

    def with_model(self, model: type[_Model]) -> Resource[_Model]:
        """Return the same resource, decoded as another type."""
        return Resource(
            self.group, self.version, self.plural, self.kind, model, namespaced=self.namespaced
        )

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of its objects: ``v1``, ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def display_name(self) -> str:
        """The name for people and metrics: ``pods``, ``leases.coordination.k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path; without ``namespace`` that of all namespaces."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/" + "/".join(parts)

    def decode(self, data: bytes | msgspec.Raw) -> T:
        """Decode one object; raises :class:`msgspec.MsgspecError`."""
        # T of a dict alias is not known to be hashable, which every class is.
        decoder: msgspec.json.Decoder[T] = _get_decoder(self.model)  # type: ignore[arg-type]
        return decoder.decode(data)

    def to_manifest(self, fields: Mapping[str, Any]) -> Manifest:
        """Return ``fields`` with ``apiVersion`` and ``kind``."""
        return {"apiVersion": self.api_version, "kind": self.kind, **fields}


@cache
def _get_decoder(model: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(model)


def custom_resource(
    api_version: str, kind: str, model: type[T], *, plural: str = "", namespaced: bool = True
) -> Resource[T]:
    """Return the resource of a kind; its plural is by default the one that most CRDs have."""
    group, _, version = api_version.rpartition("/")
    return Resource(group, version, plural or f"{kind.lower()}s", kind, model, namespaced)


def _core_resource(plural: str, kind: str, *, namespaced: bool = True) -> Resource[Manifest]:
    return Resource("", "v1", plural, kind, Manifest, namespaced)


def _rbac_resource(plural: str, kind: str) -> Resource[Manifest]:
    return Resource("rbac.authorization.k8s.io", "v1", plural, kind, Manifest)


CONFIG_MAPS = _core_resource("configmaps", "ConfigMap")
EVENTS = _core_resource("events", "Event")
NAMESPACES = _core_resource("namespaces", "Namespace", namespaced=False)
NODES = _core_resource("nodes", "Node", namespaced=False)
PERSISTENT_VOLUME_CLAIMS = _core_resource("persistentvolumeclaims", "PersistentVolumeClaim")
PODS = _core_resource("pods", "Pod")
SECRETS = _core_resource("secrets", "Secret")
SERVICES = _core_resource("services", "Service")
SERVICE_ACCOUNTS = _core_resource("serviceaccounts", "ServiceAccount")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", Manifest)
PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", Manifest, namespaced=False
)
STORAGE_CLASSES = Resource(
    "storage.k8s.io", "v1", "storageclasses", "StorageClass", Manifest, namespaced=False
)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", Manifest)
HORIZONTAL_POD_AUTOSCALERS = Resource(
    "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", Manifest
)
ROLES = _rbac_resource("roles", "Role")
ROLE_BINDINGS = _rbac_resource("rolebindings", "RoleBinding")
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    Manifest,
    False,
)
