"""Custom kinds: created by definitions; validated, pruned and defaulted by their schemas."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.fakes.kubernetes.kinds import ResourceKind, ScalePaths
from tests.fakes.kubernetes.status_errors import Cause, required_cause

if TYPE_CHECKING:
    from tests.fakes.kubernetes.cluster import FakeCluster

__all__ = ["establish", "parse_kinds", "prune_and_default", "validate", "withdraw"]

Object = dict[str, Any]
Schema = Mapping[str, Any]


def parse_kinds(definition: Mapping[str, Any]) -> list[ResourceKind]:
    """Return the kinds of a CustomResourceDefinition, one for each served version."""
    spec = definition["spec"]
    return [
        _parse_version(spec, version) for version in spec["versions"] if version.get("served", True)
    ]


def _parse_version(spec: Mapping[str, Any], version: Mapping[str, Any]) -> ResourceKind:
    subresources = version.get("subresources") or {}
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    scale = subresources.get("scale")
    return ResourceKind(
        group=spec["group"],
        version=version["name"],
        plural=spec["names"]["plural"],
        kind=spec["names"]["kind"],
        namespaced=spec["scope"] == "Namespaced",
        status="status" in subresources,
        custom=True,
        scale=scale
        and ScalePaths(
            scale["specReplicasPath"],
            scale["statusReplicasPath"],
            scale.get("labelSelectorPath", ""),
        ),
        schema=schema,
        short_names=tuple(spec["names"].get("shortNames") or ()),
    )


def establish(cluster: FakeCluster, definition: Object) -> Object:
    """Serve the kinds of a definition and set its conditions."""
    cluster.register(*parse_kinds(definition))
    crds = cluster.kind("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    names = definition["spec"]["names"]
    conditions = [
        {
            "type": name,
            "status": "True",
            "reason": reason,
            "lastTransitionTime": cluster.timestamp(),
        }
        for name, reason in (
            ("NamesAccepted", "NoConflicts"),
            ("Established", "InitialNamesAccepted"),
        )
    ]
    stored = [
        version["name"] for version in definition["spec"]["versions"] if version.get("storage")
    ]
    status = {"conditions": conditions, "acceptedNames": names, "storedVersions": stored}
    key = ("", definition["metadata"]["name"])
    return cluster.storage.write(crds, key, {**definition, "status": status})


def withdraw(cluster: FakeCluster, definition: Object) -> None:
    """Stop serving the kinds of a definition and remove their objects."""
    cluster.unregister(parse_kinds(definition))


def prune_and_default(kind: ResourceKind, obj: Object) -> None:
    """Remove fields that the schema does not have, and fill in its defaults."""
    if not kind.schema:
        return
    # A schema of metadata fields does not prune the other ones (apiextensions).
    kept = {name: obj.pop(name) for name in ("apiVersion", "kind", "metadata")}
    _prune_and_default(kind.schema, obj)
    obj.update(kept)


def _prune_and_default(schema: Schema, value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _prune_and_default(schema.get("items") or {}, item)
    elif isinstance(value, dict):
        properties = schema.get("properties") or {}
        for name, child in properties.items():
            if "default" in child and value.get(name) is None:
                value[name] = copy.deepcopy(child["default"])
        others = schema.get("additionalProperties")
        for name in list(value):
            below = properties.get(name, others)
            if isinstance(below, dict):
                _prune_and_default(below, value[name])
            elif not (below or schema.get("x-kubernetes-preserve-unknown-fields")):
                del value[name]


def validate(kind: ResourceKind, obj: Object) -> Sequence[Cause]:
    """Return the violations of the schema."""
    return list(_validate_value(kind.schema, obj, "")) if kind.schema else []


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


def _validate_value(schema: Schema, value: Any, path: str) -> Iterator[Cause]:
    if value is None:
        return
    expected = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        expected = None
    if expected and not _has_type(value, expected):
        text = f'Invalid value: "{_json_type(value)}": {path} in body must be of type {expected}: '
        yield _make_cause("FieldValueTypeInvalid", f'{text}"{_json_type(value)}"', path)
        return
    yield from _validate_limits(schema, value, path)
    if isinstance(value, dict):
        yield from _validate_fields(schema, value, path)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _validate_value(schema.get("items") or {}, item, f"{path}[{number}]")


def _validate_fields(schema: Schema, value: Mapping[str, Any], path: str) -> Iterator[Cause]:
    for name in schema.get("required") or ():
        if name not in value:
            yield required_cause(f"{path}.{name}".lstrip("."))
    others = schema.get("additionalProperties")
    for name, child in value.items():
        below = (schema.get("properties") or {}).get(name, others)
        if isinstance(below, dict) and (path or name != "metadata"):
            yield from _validate_value(below, child, f"{path}.{name}".lstrip("."))


def _validate_limits(schema: Schema, value: Any, path: str) -> Iterator[Cause]:
    if "enum" in schema and value not in schema["enum"]:
        known = ", ".join(f'"{choice}"' for choice in schema["enum"])
        text = f'Unsupported value: "{value}": supported values: {known}'
        yield _make_cause("FieldValueNotSupported", text, path)
    if "minimum" in schema and isinstance(value, int | float) and value < schema["minimum"]:
        text = f"should be greater than or equal to {schema['minimum']}"
        yield _make_cause(
            "FieldValueInvalid", f"Invalid value: {value}: {path} in body {text}", path
        )
    if "maximum" in schema and isinstance(value, int | float) and value > schema["maximum"]:
        text = f"should be less than or equal to {schema['maximum']}"
        yield _make_cause(
            "FieldValueInvalid", f"Invalid value: {value}: {path} in body {text}", path
        )


def _make_cause(reason: str, message: str, field: str) -> Cause:
    return {"reason": reason, "message": message, "field": field}


def _has_type(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "boolean"
    return isinstance(value, _TYPES[wanted])


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return next((name for name, types in _TYPES.items() if isinstance(value, types)), "null")
