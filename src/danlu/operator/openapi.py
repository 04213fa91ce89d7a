"""Convert msgspec structs to structural schemas (apiextensions.k8s.io/v1).

A structural schema has no references, so nested types are inlined. ``null`` is not allowed, because
structs omit fields that are None. Defaults are left out, because danlu sets them when it decodes an
object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from danlu.kube.types import Manifest

Schema = Mapping[str, Any]

OPEN_OBJECT: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""An object with any fields, all of which are preserved."""

ANY_VALUE: Schema = {"x-kubernetes-preserve-unknown-fields": True}
"""Any value, which is preserved."""

# k8s.io/apimachinery, resource.Quantity, as controller-gen writes it.
QUANTITY: Schema = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
}

_REFERENCE = "#/$defs/"


def integer_schema(minimum: int = 0, maximum: int = 2**31 - 1) -> Schema:
    """Return the schema of an integer within bounds."""
    schema: dict[str, Any] = {"type": "integer", "format": "int32", "minimum": minimum}
    if maximum >= 2**31:
        schema["format"] = "int64"
    # The format implies the largest int32 and int64.
    return {**schema, "maximum": maximum} if maximum < 2**31 - 1 else schema


def closed_object(properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> Manifest:
    """Return the schema of an object with these fields; the API server prunes all others."""
    schema: Manifest = {"type": "object", "properties": dict(properties)}
    return {**schema, "required": list(required)} if required else schema


def struct_schema(type: Any, **overrides: Schema) -> Manifest:
    """Return the schema of a struct; ``overrides`` replaces the schemas of some fields.

    Raises :class:`TypeError` if a structural schema cannot express the type, or if ``overrides``
    names an unknown field.
    """
    (root,), components = msgspec.json.schema_components((type,))
    found = _to_structural(root, components)
    for name, schema in overrides.items():
        if name not in found["properties"]:
            raise TypeError(f"{type.__name__} has no field {name}")
        found["properties"][name] = dict(schema)
    return found


def _to_structural(schema: Schema, components: Mapping[str, Any]) -> Manifest:
    """Return ``schema`` without references, null and defaults."""
    if "$ref" in schema:
        return _to_structural(components[schema["$ref"].removeprefix(_REFERENCE)], components)
    if "anyOf" in schema:
        return _to_structural(_non_null_schema(schema["anyOf"]), components)
    found: Manifest = {}
    if "description" in schema:
        found["description"] = schema["description"].split("\n\n")[0]
    if "enum" in schema:
        return {**found, "type": "string", "enum": list(schema["enum"])}
    found["type"] = schema["type"]
    return {**found, **_member_schemas(schema, components)}


def _member_schemas(schema: Schema, components: Mapping[str, Any]) -> Manifest:
    """Return the schemas of what an object or array contains."""
    match schema["type"]:
        case "array":
            return {"items": _to_structural(schema.get("items") or {"type": "object"}, components)}
        case "object" if "properties" in schema:
            fields = schema["properties"].items()
            properties = {name: _to_structural(field, components) for name, field in fields}
            required = schema.get("required")
            found: Manifest = {"properties": properties}
            return {**found, "required": list(required)} if required else found
        case "object" if schema.get("additionalProperties"):
            return {
                "additionalProperties": _to_structural(schema["additionalProperties"], components)
            }
        case "object":
            return {"x-kubernetes-preserve-unknown-fields": True}
        case _:
            return {}


def _non_null_schema(alternatives: list[Schema]) -> Schema:
    """Return the single alternative that is not null."""
    given = [alternative for alternative in alternatives if alternative.get("type") != "null"]
    if len(given) != 1:
        raise TypeError(f"a structural schema cannot express {len(given)} alternatives")
    return given[0]
