"""Discovery documents: versions, groups and the served kinds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.fakes.kubernetes.kinds import ResourceKind

__all__ = ["document"]

Object = dict[str, Any]
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.0-danlu-fake", "platform": "fake"}


def document(path: str, kinds: Iterable[ResourceKind]) -> Object | None:
    """Return the discovery document of a path; None if it is not a discovery path."""
    parts = path.strip("/").split("/")
    served = list(kinds)
    if path == "/version":
        return VERSION
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        names = sorted({kind.group for kind in served if kind.group})
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_api_group(name, served) for name in names],
        }
    if len(parts) == 2 and parts[0] == "apis":
        return (
            _api_group(parts[1], served) if any(kind.group == parts[1] for kind in served) else None
        )
    if parts[0] == "api" and len(parts) == 2:
        return _api_resources("", parts[1], served)
    if parts[0] == "apis" and len(parts) == 3:
        return _api_resources(parts[1], parts[2], served)
    return None


def _api_group(name: str, served: list[ResourceKind]) -> Object:
    versions = sorted({kind.version for kind in served if kind.group == name}, reverse=True)
    output = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": output,
        "preferredVersion": output[0],
    }


def _api_resources(group: str, version: str, served: list[ResourceKind]) -> Object | None:
    results = [kind for kind in served if (kind.group, kind.version) == (group, version)]
    if not results:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": results[0].api_version,
        "resources": [entry for kind in results for entry in _resource_entries(kind)],
    }


def _resource_entries(kind: ResourceKind) -> Iterable[Object]:
    yield {
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": _VERBS,
        "shortNames": list(kind.short_names),
    }
    for subresource in kind.subresources:
        yield {
            "name": f"{kind.plural}/{subresource}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": "Scale" if subresource == "scale" else kind.kind,
            "verbs": ["get", "patch", "update"],
        }
