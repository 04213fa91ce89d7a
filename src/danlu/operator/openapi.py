"""Frozen types as schemas that an API server takes (apiextensions.k8s.io/v1, structural schemas).

Everything is written in place, for a structural schema has no references, and nothing is null:
what a struct leaves out where it is None is not there for Kubernetes either. Defaults are left
out too, for danlu fills them in where it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from danlu.kube.types import Document

__all__ = ["ANYTHING", "OPEN", "QUANTITY", "Schema", "closed", "integer", "schema_of"]

Schema = Mapping[str, Any]

OPEN: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""An object that is kept as it is, whatever its fields."""

ANYTHING: Schema = {"x-kubernetes-preserve-unknown-fields": True}
"""Any value at all, kept as it is."""

# k8s.io/apimachinery, resource.Quantity, as controller-gen writes it.
QUANTITY: Schema = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
}

_REFERENCE = "#/$defs/"


def integer(least: int = 0, most: int = 2**31 - 1) -> Schema:
    """A whole number within bounds."""
    size = "int32" if most < 2**31 else "int64"
    bounds = {"minimum": least} if most >= 2**31 - 1 else {"minimum": least, "maximum": most}
    return {"type": "integer", "format": size, **bounds}


def closed(properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> Document:
    """An object of these fields; the server drops others."""
    schema: Document = {"type": "object", "properties": dict(properties)}
    return {**schema, "required": list(required)} if required else schema


def schema_of(type: Any, **instead: Schema) -> Document:
    """The schema of a struct; ``instead`` has those of fields that a type says too little of.

    Raises :class:`TypeError` for what a structural schema cannot say, and for a field in
    ``instead`` that the struct has not.
    """
    (root,), components = msgspec.json.schema_components((type,))
    found = _structural(root, components)
    for name, schema in instead.items():
        if name not in found["properties"]:
            raise TypeError(f"{type.__name__} has no field {name}")
        found["properties"][name] = dict(schema)
    return found


def _structural(schema: Schema, components: Mapping[str, Any]) -> Document:
    """``schema`` without references, without null and without defaults."""
    if "$ref" in schema:
        return _structural(components[schema["$ref"].removeprefix(_REFERENCE)], components)
    if "anyOf" in schema:
        return _structural(_present(schema["anyOf"]), components)
    found: Document = {}
    if "description" in schema:
        found["description"] = schema["description"].split("\n\n")[0]
    if "enum" in schema:
        return {**found, "type": "string", "enum": list(schema["enum"])}
    found["type"] = schema["type"]
    return {**found, **_members(schema, components)}


def _members(schema: Schema, components: Mapping[str, Any]) -> Document:
    """What is in an object or a list."""
    match schema["type"]:
        case "array":
            return {"items": _structural(schema.get("items") or {"type": "object"}, components)}
        case "object" if "properties" in schema:
            fields = schema["properties"].items()
            properties = {name: _structural(one, components) for name, one in fields}
            required = schema.get("required")
            found: Document = {"properties": properties}
            return {**found, "required": list(required)} if required else found
        case "object" if schema.get("additionalProperties"):
            return {"additionalProperties": _structural(schema["additionalProperties"], components)}
        case "object":
            return {"x-kubernetes-preserve-unknown-fields": True}
        case _:
            return {}


def _present(alternatives: list[Schema]) -> Schema:
    """The one alternative that is not null."""
    given = [one for one in alternatives if one.get("type") != "null"]
    if len(given) != 1:
        raise TypeError(f"a structural schema has no room for {len(given)} alternatives")
    return given[0]
