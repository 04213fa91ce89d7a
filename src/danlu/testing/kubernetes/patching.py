"""The three patches that change an object as a document: JSON, merge and strategic merge."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from danlu.testing.kubernetes.kinds import Kind, Shape
from danlu.testing.kubernetes.refusals import Refusal, bad_request, unsupported_media

__all__ = ["patched"]

Json = Any
_REJECTED = "the server rejected our request due to an error in our request"


def patched(kind: Kind, media_type: str, current: dict[str, Json], patch: Json) -> dict[str, Json]:
    """``current`` changed as ``patch`` says; raises a refusal for one that cannot be."""
    if media_type == "application/json-patch+json":
        result = _json_patch(copy.deepcopy(current), patch)
    elif media_type == "application/merge-patch+json":
        result = _merge(current, _object(patch))
    elif media_type == "application/strategic-merge-patch+json":
        if kind.custom:
            raise unsupported_media(
                "the body of the request was in an unknown format - accepted media types include: "
                "application/json-patch+json, application/merge-patch+json, "
                "application/apply-patch+yaml"
            )
        result = _strategic(current, _object(patch), (), kind.shape)
    else:
        raise unsupported_media(f"a patch of type {media_type} is not known")
    return _object(result)


def _object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise bad_request("a patch must be a JSON object")
    return value


# RFC 6902


def _json_patch(document: Json, operations: Json) -> Json:
    if not isinstance(operations, list):
        raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    for operation in operations:
        try:
            document = _OPERATIONS[operation["op"]](document, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Refusal(422, "Invalid", _REJECTED) from error
    return document


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise ValueError(pointer)
    return [one.replace("~1", "/").replace("~0", "~") for one in pointer.split("/")[1:]]


def _find(document: Json, steps: list[str]) -> Json:
    for step in steps:
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


def _add(document: Json, operation: Mapping[str, Json]) -> Json:
    return _put(document, _steps(operation["path"]), copy.deepcopy(operation["value"]))


def _put(document: Json, steps: list[str], value: Json) -> Json:
    if not steps:
        return value
    parent, last = _find(document, steps[:-1]), steps[-1]
    if isinstance(parent, list):
        at = len(parent) if last == "-" else int(last)
        if not 0 <= at <= len(parent):
            raise IndexError(at)
        parent.insert(at, value)
    else:
        parent[last] = value
    return document


def _remove(document: Json, operation: Mapping[str, Json]) -> Json:
    steps = _steps(operation["path"])
    parent, last = _find(document, steps[:-1]), steps[-1]
    del parent[int(last) if isinstance(parent, list) else last]
    return document


def _replace(document: Json, operation: Mapping[str, Json]) -> Json:
    steps, value = _steps(operation["path"]), copy.deepcopy(operation["value"])
    parent = _find(document, steps[:-1])
    if isinstance(parent, list):
        parent[int(steps[-1])] = value
    elif steps:
        # Against the RFC the real server's library takes a name that is not there.
        parent[steps[-1]] = value
    else:
        return value
    return document


def _move(document: Json, operation: Mapping[str, Json]) -> Json:
    value = _find(document, _steps(operation["from"]))
    _remove(document, {"path": operation["from"]})
    return _put(document, _steps(operation["path"]), value)


def _copied(document: Json, operation: Mapping[str, Json]) -> Json:
    value = copy.deepcopy(_find(document, _steps(operation["from"])))
    return _put(document, _steps(operation["path"]), value)


def _tested(document: Json, operation: Mapping[str, Json]) -> Json:
    if _find(document, _steps(operation["path"])) != operation["value"]:
        raise ValueError("test failed")
    return document


_OPERATIONS: dict[str, Callable[[Json, Mapping[str, Json]], Json]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copied,
    "test": _tested,
}


# RFC 7396


def _merge(target: Json, patch: Json) -> Json:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), value)
    return result


# Strategic merge (apimachinery, util/strategicpatch)


def _strategic(target: Json, patch: dict[str, Json], path: tuple[str, ...], shape: Shape) -> Json:
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            at = name.partition("/")[2]
            result[at] = [one for one in result.get(at) or () if one not in value]
        elif name.startswith("$"):
            continue
        elif value is None:
            result.pop(name, None)
        else:
            result[name] = _strategic_value(result.get(name), value, (*path, name), shape)
    return result


def _strategic_value(target: Json, value: Json, path: tuple[str, ...], shape: Shape) -> Json:
    if isinstance(value, dict):
        return _strategic(target, value, path, shape)
    how = shape.get(path)
    if not isinstance(value, list) or how is None:
        return value
    if how.is_set:
        present = list(target or ())
        return present + [one for one in value if one not in present]
    return _strategic_list(list(target or ()), value, path, shape)


def _strategic_list(
    target: list[Json], patch: list[Json], path: tuple[str, ...], shape: Shape
) -> list[Json]:
    if any(one.get("$patch") == "replace" for one in patch):
        return [one for one in patch if one.get("$patch") != "replace"]
    keys = shape[path].merge_keys
    for item in patch:
        if any(key not in item for key in keys):
            raise bad_request(f"map: {item} does not contain declared merge key: {keys[0]}")
        at = next((n for n, one in enumerate(target) if _same(one, item, keys)), None)
        if item.get("$patch") == "delete":
            target = [one for one in target if not _same(one, item, keys)]
        elif at is None:
            target = [*target, _strategic({}, item, (*path, "*"), shape)]
        else:
            target[at] = _strategic(target[at], item, (*path, "*"), shape)
    return target


def _same(one: Mapping[str, Json], other: Mapping[str, Json], keys: tuple[str, ...]) -> bool:
    return all(one.get(key) == other.get(key) for key in keys)
