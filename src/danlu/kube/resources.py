"""Kinds of objects: where an API server keeps them, and as what they are decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from danlu.kube.types import Document, T

__all__ = [
    "CONFIG_MAPS",
    "CUSTOM_RESOURCE_DEFINITIONS",
    "EVENTS",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PODS",
    "ROLES",
    "ROLE_BINDINGS",
    "SECRETS",
    "SERVICES",
    "SERVICE_ACCOUNTS",
    "Resource",
]

_As = TypeVar("_As")


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind of objects: group (empty for the core), version and plural; decoded as ``model``."""

    group: str
    version: str
    plural: str
    kind: str
    model: type[T]
    namespaced: bool = True

    def decoded(self, model: type[_As]) -> Resource[_As]:
        """The same kind, decoded as another type."""
        return Resource(
            self.group, self.version, self.plural, self.kind, model, namespaced=self.namespaced
        )

    @property
    def api_version(self) -> str:
        """As objects name it: ``v1``, ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def label(self) -> str:
        """As people and metrics name it: ``pods``, ``leases.coordination.k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path on the server; without ``namespace`` that of all namespaces."""
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
        """One object of its bytes; raises :class:`msgspec.MsgspecError`."""
        return decoder(self.model).decode(data)

    def document(self, fields: Mapping[str, Any]) -> Document:
        """``fields`` with the version and kind that a server wants to see."""
        return {"apiVersion": self.api_version, "kind": self.kind, **fields}


_decoders: dict[Any, Any] = {}


def decoder(model: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a type, made once."""
    if model not in _decoders:
        _decoders[model] = msgspec.json.Decoder(model)
    found: msgspec.json.Decoder[T] = _decoders[model]
    return found


def _core(plural: str, kind: str, *, namespaced: bool = True) -> Resource[Document]:
    return Resource("", "v1", plural, kind, Document, namespaced)


def _rbac(plural: str, kind: str) -> Resource[Document]:
    return Resource("rbac.authorization.k8s.io", "v1", plural, kind, Document)


CONFIG_MAPS = _core("configmaps", "ConfigMap")
EVENTS = _core("events", "Event")
NAMESPACES = _core("namespaces", "Namespace", namespaced=False)
NODES = _core("nodes", "Node", namespaced=False)
PODS = _core("pods", "Pod")
SECRETS = _core("secrets", "Secret")
SERVICES = _core("services", "Service")
SERVICE_ACCOUNTS = _core("serviceaccounts", "ServiceAccount")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", Document)
ROLES = _rbac("roles", "Role")
ROLE_BINDINGS = _rbac("rolebindings", "RoleBinding")
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    Document,
    False,
)
