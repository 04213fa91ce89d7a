"""The patch formats that change an object: JSON, merge, strategic merge, and server-side apply."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes.kubernetes.kinds import ResourceKind, Shape
from tests.fakes.kubernetes.status_errors import StatusError, bad_request, unsupported_media

__all__ = ["APPLY", "apply_fields", "apply_patch"]

APPLY = "application/apply-patch+yaml"

Json = Any
_REJECTED = "the server rejected our request due to an error in our request"


def apply_patch(
    kind: ResourceKind, media_type: str, current: dict[str, Json], patch: Json
) -> dict[str, Json]:
    """Return ``current`` with ``patch`` applied; raises StatusError for an invalid patch."""
    if media_type == "application/json-patch+json":
        result = _apply_json_patch(copy.deepcopy(current), patch)
    elif media_type == "application/merge-patch+json":
        result = _merge_patch(current, _require_object(patch))
    elif media_type == "application/strategic-merge-patch+json":
        if kind.custom:
            raise unsupported_media(
                "the body of the request was in an unknown format - accepted media types include: "
                "application/json-patch+json, application/merge-patch+json, "
                "application/apply-patch+yaml"
            )
        result = _strategic_merge(current, _require_object(patch), (), kind.shape)
    else:
        raise unsupported_media(f"a patch of type {media_type} is not known")
    return _require_object(result)


def _require_object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise bad_request("a patch must be a JSON object")
    return value


# RFC 6902


def _apply_json_patch(document: Json, operations: Json) -> Json:
    if not isinstance(operations, list):
        raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    for operation in operations:
        try:
            document = _OPERATIONS[operation["op"]](document, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise StatusError(422, "Invalid", _REJECTED) from error
    return document


def _parse_pointer(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise ValueError(pointer)
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _resolve_pointer(document: Json, steps: list[str]) -> Json:
    for step in steps:
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


def _add_value(document: Json, operation: Mapping[str, Json]) -> Json:
    return _insert_value(
        document, _parse_pointer(operation["path"]), copy.deepcopy(operation["value"])
    )


def _insert_value(document: Json, steps: list[str], value: Json) -> Json:
    if not steps:
        return value
    parent, last = _resolve_pointer(document, steps[:-1]), steps[-1]
    if isinstance(parent, list):
        at = len(parent) if last == "-" else int(last)
        if not 0 <= at <= len(parent):
            raise IndexError(at)
        parent.insert(at, value)
    else:
        parent[last] = value
    return document


def _remove_value(document: Json, operation: Mapping[str, Json]) -> Json:
    steps = _parse_pointer(operation["path"])
    parent, last = _resolve_pointer(document, steps[:-1]), steps[-1]
    del parent[int(last) if isinstance(parent, list) else last]
    return document


def _replace_value(document: Json, operation: Mapping[str, Json]) -> Json:
    steps, value = _parse_pointer(operation["path"]), copy.deepcopy(operation["value"])
    parent = _resolve_pointer(document, steps[:-1])
    if isinstance(parent, list):
        parent[int(steps[-1])] = value
    elif steps:
        # Unlike the RFC, the real server's library accepts a name that does not exist.
        parent[steps[-1]] = value
    else:
        return value
    return document


def _move_value(document: Json, operation: Mapping[str, Json]) -> Json:
    value = _resolve_pointer(document, _parse_pointer(operation["from"]))
    _remove_value(document, {"path": operation["from"]})
    return _insert_value(document, _parse_pointer(operation["path"]), value)


def _copy_value(document: Json, operation: Mapping[str, Json]) -> Json:
    value = copy.deepcopy(_resolve_pointer(document, _parse_pointer(operation["from"])))
    return _insert_value(document, _parse_pointer(operation["path"]), value)


def _test_value(document: Json, operation: Mapping[str, Json]) -> Json:
    if _resolve_pointer(document, _parse_pointer(operation["path"])) != operation["value"]:
        raise ValueError("test failed")
    return document


_OPERATIONS: dict[str, Callable[[Json, Mapping[str, Json]], Json]] = {
    "add": _add_value,
    "remove": _remove_value,
    "replace": _replace_value,
    "move": _move_value,
    "copy": _copy_value,
    "test": _test_value,
}


# RFC 7396


def _merge_patch(target: Json, patch: Json) -> Json:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge_patch(result.get(name), value)
    return result


# Strategic merge (apimachinery, util/strategicpatch)


def _strategic_merge(
    target: Json, patch: dict[str, Json], path: tuple[str, ...], shape: Shape
) -> Json:
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            at = name.partition("/")[2]
            result[at] = [element for element in result.get(at) or () if element not in value]
        elif name.startswith("$"):
            continue
        elif value is None:
            result.pop(name, None)
        else:
            result[name] = _strategic_value(result.get(name), value, (*path, name), shape)
    return result


def _strategic_value(target: Json, value: Json, path: tuple[str, ...], shape: Shape) -> Json:
    if isinstance(value, dict):
        return _strategic_merge(target, value, path, shape)
    how = shape.get(path)
    if not isinstance(value, list) or how is None:
        return value
    if how.is_set:
        present = list(target or ())
        return present + [element for element in value if element not in present]
    return _strategic_list(list(target or ()), value, path, shape)


def _strategic_list(
    target: list[Json], patch: list[Json], path: tuple[str, ...], shape: Shape
) -> list[Json]:
    if any(element.get("$patch") == "replace" for element in patch):
        return [element for element in patch if element.get("$patch") != "replace"]
    keys = shape[path].keys
    for item in patch:
        if any(key not in item for key in keys):
            raise bad_request(f"map: {item} does not contain declared merge key: {keys[0]}")
        at = next(
            (n for n, element in enumerate(target) if _has_same_keys(element, item, keys)), None
        )
        if item.get("$patch") == "delete":
            target = [element for element in target if not _has_same_keys(element, item, keys)]
        elif at is None:
            target = [*target, _strategic_merge({}, item, (*path, "*"), shape)]
        else:
            target[at] = _strategic_merge(target[at], item, (*path, "*"), shape)
    return target


def _has_same_keys(
    element: Mapping[str, Json], other: Mapping[str, Json], keys: tuple[str, ...]
) -> bool:
    return all(element.get(key) == other.get(key) for key in keys)


# Server-side apply (sigs.k8s.io/structured-merge-diff)


def apply_fields(
    kind: ResourceKind,
    current: dict[str, Json],
    earlier: Mapping[str, Json],
    wanted: Mapping[str, Json],
) -> dict[str, Json]:
    """Return ``current`` with the fields of ``wanted``, without others that ``earlier`` had."""
    result: dict[str, Json] = _apply_value(current, earlier, wanted, (), kind.shape)
    return result


def _apply_value(
    current: Json, earlier: Json, wanted: Json, path: tuple[str, ...], shape: Shape
) -> Json:
    if isinstance(wanted, dict):
        return _apply_object(current, earlier, wanted, path, shape)
    how = shape.get(path)
    if not isinstance(wanted, list) or how is None or how.is_set:
        return copy.deepcopy(wanted)
    return _apply_list(current or [], earlier or [], wanted, path, shape)


def _apply_object(
    current: Json, earlier: Json, wanted: dict[str, Json], path: tuple[str, ...], shape: Shape
) -> dict[str, Json]:
    before = earlier if isinstance(earlier, dict) else {}
    result = {
        name: value
        for name, value in (current if isinstance(current, dict) else {}).items()
        if name in wanted or name not in before
    }
    for name, value in wanted.items():
        result[name] = _apply_value(result.get(name), before.get(name), value, (*path, name), shape)
    return result


def _apply_list(
    current: list[Json],
    earlier: list[Json],
    wanted: list[Json],
    path: tuple[str, ...],
    shape: Shape,
) -> list[Json]:
    keys = shape[path].keys

    def find(items: list[Json], item: Json) -> Json:
        return next((other for other in items if _has_same_keys(other, item, keys)), None)

    kept = [item for item in current if find(wanted, item) is None and find(earlier, item) is None]
    merged = [
        _apply_object(find(current, item), find(earlier, item), item, (*path, "*"), shape)
        for item in wanted
    ]
    return [*kept, *merged]
