"""Custom kinds: made by definitions, checked, pruned and defaulted by their schemas."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from danlu.testing.kubernetes.builtin import META
from danlu.testing.kubernetes.kinds import Kind, ListShape, Scale
from danlu.testing.kubernetes.refusals import Cause, required

if TYPE_CHECKING:
    from danlu.testing.kubernetes.cluster import Cluster

__all__ = ["established", "kinds_of", "mistakes", "shaped", "withdrawn"]

Object = dict[str, Any]
Schema = Mapping[str, Any]


def kinds_of(definition: Mapping[str, Any]) -> list[Kind]:
    """The kinds, one a served version, that a CustomResourceDefinition makes."""
    spec = definition["spec"]
    return [_kind(spec, version) for version in spec["versions"] if version.get("served", True)]


def _kind(spec: Mapping[str, Any], version: Mapping[str, Any]) -> Kind:
    subresources = version.get("subresources") or {}
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    scale = subresources.get("scale")
    return Kind(
        group=spec["group"],
        version=version["name"],
        plural=spec["names"]["plural"],
        kind=spec["names"]["kind"],
        namespaced=spec["scope"] == "Namespaced",
        status="status" in subresources,
        custom=True,
        scale=scale
        and Scale(
            scale["specReplicasPath"],
            scale["statusReplicasPath"],
            scale.get("labelSelectorPath", ""),
        ),
        shape={**META, **dict(_shapes(schema, ()))},
        schema=schema,
        short_names=tuple(spec["names"].get("shortNames") or ()),
    )


def _shapes(schema: Schema, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ListShape]]:
    for name, one in (schema.get("properties") or {}).items():
        yield from _shapes(one, (*path, name))
    if "items" not in schema:
        return
    if schema.get("x-kubernetes-list-type") == "map":
        yield path, ListShape(tuple(schema["x-kubernetes-list-map-keys"]))
    elif schema.get("x-kubernetes-list-type") == "set":
        yield path, ListShape(is_set=True)
    yield from _shapes(schema["items"], (*path, "*"))


def established(cluster: Cluster, definition: Object) -> Object:
    """Serve what a definition makes, and say so in its status."""
    cluster.register(*kinds_of(definition))
    crds = cluster.kind("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    names = definition["spec"]["names"]
    conditions = [
        {"type": name, "status": "True", "reason": reason, "lastTransitionTime": cluster.time()}
        for name, reason in (
            ("NamesAccepted", "NoConflicts"),
            ("Established", "InitialNamesAccepted"),
        )
    ]
    stored = [one["name"] for one in definition["spec"]["versions"] if one.get("storage")]
    status = {"conditions": conditions, "acceptedNames": names, "storedVersions": stored}
    place = ("", definition["metadata"]["name"])
    return cluster.storage.write(crds, place, {**definition, "status": status})


def withdrawn(cluster: Cluster, definition: Object) -> None:
    """Serve it no longer; its objects are gone."""
    cluster.ended_kinds(kinds_of(definition))


def shaped(kind: Kind, obj: Object) -> None:
    """Prune what the schema does not know, and fill in its defaults."""
    if not kind.schema:
        return
    # What a schema says of the metadata's fields prunes none of the others (apiextensions).
    kept = {name: obj.pop(name) for name in ("apiVersion", "kind", "metadata")}
    _shape(kind.schema, obj)
    obj.update(kept)


def _shape(schema: Schema, value: Any) -> None:
    if isinstance(value, list):
        for one in value:
            _shape(schema.get("items") or {}, one)
    elif isinstance(value, dict):
        properties = schema.get("properties") or {}
        for name, one in properties.items():
            if "default" in one and value.get(name) is None:
                value[name] = copy.deepcopy(one["default"])
        others = schema.get("additionalProperties")
        for name in list(value):
            below = properties.get(name, others)
            if isinstance(below, dict):
                _shape(below, value[name])
            elif not (below or schema.get("x-kubernetes-preserve-unknown-fields")):
                del value[name]


def mistakes(kind: Kind, obj: Object) -> Sequence[Cause]:
    """What the schema does not allow."""
    return list(_mistakes(kind.schema, obj, "")) if kind.schema else []


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


def _mistakes(schema: Schema, value: Any, path: str) -> Iterator[Cause]:
    if value is None:
        return
    wanted = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        wanted = None
    if wanted and not _is(value, wanted):
        text = f'Invalid value: "{_type_of(value)}": {path} in body must be of type {wanted}: '
        yield _cause("FieldValueTypeInvalid", f'{text}"{_type_of(value)}"', path)
        return
    yield from _limits(schema, value, path)
    if isinstance(value, dict):
        yield from _inside(schema, value, path)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _mistakes(schema.get("items") or {}, one, f"{path}[{number}]")


def _inside(schema: Schema, value: Mapping[str, Any], path: str) -> Iterator[Cause]:
    for name in schema.get("required") or ():
        if name not in value:
            yield required(f"{path}.{name}".lstrip("."))
    others = schema.get("additionalProperties")
    for name, one in value.items():
        below = (schema.get("properties") or {}).get(name, others)
        if isinstance(below, dict) and (path or name != "metadata"):
            yield from _mistakes(below, one, f"{path}.{name}".lstrip("."))


def _limits(schema: Schema, value: Any, path: str) -> Iterator[Cause]:
    if "enum" in schema and value not in schema["enum"]:
        known = ", ".join(f'"{one}"' for one in schema["enum"])
        text = f'Unsupported value: "{value}": supported values: {known}'
        yield _cause("FieldValueNotSupported", text, path)
    if "minimum" in schema and isinstance(value, int | float) and value < schema["minimum"]:
        text = f"should be greater than or equal to {schema['minimum']}"
        yield _cause("FieldValueInvalid", f"Invalid value: {value}: {path} in body {text}", path)
    if "maximum" in schema and isinstance(value, int | float) and value > schema["maximum"]:
        text = f"should be less than or equal to {schema['maximum']}"
        yield _cause("FieldValueInvalid", f"Invalid value: {value}: {path} in body {text}", path)


def _cause(reason: str, message: str, field: str) -> Cause:
    return {"reason": reason, "message": message, "field": field}


def _is(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "boolean"
    return isinstance(value, _TYPES[wanted])


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return next((name for name, types in _TYPES.items() if isinstance(value, types)), "null")
