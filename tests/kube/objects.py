"""Objects that tests create, and helpers that wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from danlu.kube.client import Client
from danlu.kube.errors import NotFound
from danlu.kube.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    PODS,
    SERVICES,
    Resource,
)
from danlu.kube.types import Manifest

Json = dict[str, Any]
THINGS = Resource("danlu.test", "v1", "things", "Thing", Manifest)


def config_map(name: str, space: str, **data: str) -> Json:
    return CONFIG_MAPS.to_manifest({"metadata": {"name": name, "namespace": space}, "data": data})


def pod(name: str, space: str, **metadata: Any) -> Json:
    return PODS.to_manifest(
        {
            "metadata": {"name": name, "namespace": space, **metadata},
            "spec": {"containers": [{"name": "main", "image": "example.org/image"}]},
        }
    )


def service(name: str, space: str, **spec: Any) -> Json:
    return SERVICES.to_manifest({"metadata": {"name": name, "namespace": space}, "spec": spec})


def make_custom_object(name: str, space: str, **spec: Any) -> Json:
    return THINGS.to_manifest({"metadata": {"name": name, "namespace": space}, "spec": spec})


def owner(obj: Json, *, block: bool = False) -> Json:
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": block,
    }


def definition() -> Json:
    properties: Json = {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 0, "maximum": 100},
                "colour": {"type": "string", "enum": ["red", "green"], "default": "red"},
                "replicas": {"type": "integer"},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string"}, "weight": {"type": "integer"}},
                    },
                },
            },
        },
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
    }
    return CUSTOM_RESOURCE_DEFINITIONS.to_manifest(
        {
            "metadata": {"name": "things.danlu.test"},
            "spec": {
                "group": "danlu.test",
                "scope": "Namespaced",
                "names": {
                    "plural": "things",
                    "singular": "thing",
                    "kind": "Thing",
                    "listKind": "ThingList",
                },
                "versions": [version],
            },
        }
    )


async def eventually(
    claim: Callable[[], Awaitable[bool]] | Callable[[], bool], *, seconds: float = 60.0
) -> None:
    """Wait until the claim is true."""
    with anyio.fail_after(seconds):
        while True:
            result = claim()
            if result if isinstance(result, bool) else await result:
                return
            await anyio.sleep(0.01)


async def wait_until_gone(client: Client, resource: Resource[Any], name: str, space: str) -> None:
    async def is_gone() -> bool:
        try:
            await client.get(resource, name, namespace=space)
        except NotFound:
            return True
        return False

    await eventually(is_gone)
