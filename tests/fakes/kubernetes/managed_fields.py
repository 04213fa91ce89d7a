"""Field ownership and server-side apply (structured-merge-diff, ownership only)."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.fakes.kubernetes.kinds import ListShape, ResourceKind, Shape
from tests.fakes.kubernetes.status_errors import Cause, StatusError

__all__ = ["FieldManager", "server_side_apply", "update_managers"]

Object = dict[str, Any]
Path = tuple[str, ...]
"""Steps as FieldsV1 writes them: ``f:name``, ``k:{"name":"a"}``, ``v:"a"``."""

_UNOWNED = frozenset(
    ("metadata", name)
    for name in (
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generateName",
        "managedFields",
        "selfLink",
    )
) | {("apiVersion",), ("kind",)}
_ITEM = object()


class FieldManager(tuple[str, str, str, str]):
    """Name, operation (``Apply`` or ``Update``), API version and subresource of an owner."""

    __slots__ = ()


Owners = dict[FieldManager, frozenset[Path]]


def update_managers(
    kind: ResourceKind, old: Object, new: Object, who: FieldManager, now: str
) -> Object:
    """Return ``new`` with its managed fields: ``who`` owns what differs from ``old``."""
    before, after = _leaf_values(kind, old), _leaf_values(kind, new)
    changed = frozenset(path for path, value in after.items() if before.get(path, _NONE) != value)
    gone = before.keys() - after.keys()
    owners = _parse_owners(old)
    taken = {manager: paths - changed - gone for manager, paths in owners.items() if manager != who}
    taken[who] = (owners.get(who, frozenset()) - gone) | changed
    return _with_owners(new, old, taken, now)


_NONE = object()


def server_side_apply(
    kind: ResourceKind,
    live: Object | None,
    config: Object,
    who: FieldManager,
    *,
    force: bool,
    now: str,
) -> Object:
    """Apply the configuration of ``who`` to ``live``; raises a conflict with other managers."""
    expected = _leaf_values(kind, config)
    owners = _parse_owners(live or {})
    merged = _merge_value(copy.deepcopy(live or {}), config, (), kind.shape)
    before, after = _leaf_values(kind, live or {}), _leaf_values(kind, merged)
    changed = {path for path in expected if before.get(path, _NONE) != after.get(path, _NONE)}
    clashes = {manager: paths & changed for manager, paths in owners.items() if manager != who}
    if not force:
        _raise_conflicts(clashes)
    others = {
        manager: paths - clashes[manager] for manager, paths in owners.items() if manager != who
    }
    given_up = owners.get(who, frozenset()) - expected.keys()
    for path in sorted(given_up, key=len, reverse=True):
        if not any(_owns_below(paths, path) for paths in others.values()):
            _remove_path(merged, path)
    others[who] = frozenset(expected)
    return _with_owners(merged, live or {}, others, now)


def _owns_below(paths: frozenset[Path], path: Path) -> bool:
    return any(field_path[: len(path)] == path for field_path in paths)


def _raise_conflicts(clashes: Mapping[FieldManager, frozenset[Path]]) -> None:
    causes: list[Cause] = []
    for who, paths in clashes.items():
        using = f" with subresource {who[3]!r}" if who[3] else ""
        text = f'conflict with "{who[0]}"{using}'
        if who[1] != "Apply":
            text += f" using {who[2]}"
        causes += [
            {"reason": "FieldManagerConflict", "message": text, "field": _format_path(path)}
            for path in sorted(paths)
        ]
    if not causes:
        return
    number = f"{len(causes)} conflict{'s' if len(causes) > 1 else ''}"
    output = "; ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    raise StatusError(
        409,
        "Conflict",
        f"Apply failed with {number}: {output}",
        details={"causes": causes},
    )


def _format_path(path: Path) -> str:
    text = ""
    for step in path:
        sign, _, rest = step.partition(":")
        if sign == "f":
            text += f".{rest}"
        elif sign == "k":
            pairs = ",".join(
                f"{name}={json.dumps(key_value)}" for name, key_value in json.loads(rest).items()
            )
            text += f"[{pairs}]"
        else:
            text += f"[={rest}]"
    return text


# Values by path


def _leaf_values(kind: ResourceKind, obj: Mapping[str, Any]) -> dict[Path, Any]:
    return dict(_walk_values(obj, (), (), kind.shape))


def _walk_values(value: Any, path: Path, names: Path, shape: Shape) -> Iterator[tuple[Path, Any]]:
    if names in _UNOWNED:
        return
    how = shape.get(names)
    if isinstance(value, dict) and (value or not path):
        for name, child in value.items():
            yield from _walk_values(child, (*path, f"f:{name}"), (*names, name), shape)
    elif isinstance(value, list) and how is not None and how.is_set:
        for element in value:
            yield (*path, f"v:{json.dumps(element)}"), element
    elif isinstance(value, list) and how is not None and how.keys:
        for item in value:
            inside = (*path, _item_key(item, how))
            yield inside, _ITEM
            for name, child in item.items():
                yield from _walk_values(child, (*inside, f"f:{name}"), (*names, "*", name), shape)
    elif path:
        yield path, value


def _item_key(item: Mapping[str, Any], how: ListShape) -> str:
    keys = {name: item.get(name, how.defaults.get(name)) for name in how.keys}
    return "k:" + json.dumps(keys, separators=(",", ":"))


def _merge_value(live: Any, config: Any, names: Path, shape: Shape) -> Any:
    how = shape.get(names)
    if isinstance(config, dict):
        result = dict(live) if isinstance(live, dict) else {}
        for name, value in config.items():
            if value is not None and (*names, name) != ("metadata", "managedFields"):
                result[name] = _merge_value(result.get(name), value, (*names, name), shape)
        return result
    if isinstance(config, list) and how is not None and (how.keys or how.is_set):
        return _merge_list(list(live or ()), config, names, shape, how)
    return copy.deepcopy(config)


def _merge_list(
    live: list[Any], config: Sequence[Any], names: Path, shape: Shape, how: ListShape
) -> list[Any]:
    if how.is_set:
        return live + [element for element in config if element not in live]
    places = {_item_key(item, how): number for number, item in enumerate(live)}
    for item in config:
        at = places.get(_item_key(item, how))
        merged = _merge_value(live[at] if at is not None else {}, item, (*names, "*"), shape)
        if at is None:
            live.append(merged)
        else:
            live[at] = merged
    return live


def _remove_path(obj: Any, path: Path) -> None:
    step, rest = path[0], path[1:]
    sign, _, text = step.partition(":")
    if sign == "f":
        if not isinstance(obj, dict) or text not in obj:
            return
        if not rest:
            del obj[text]
            return
        _remove_path(obj[text], rest)
        if obj[text] in ({}, []):
            del obj[text]
    elif isinstance(obj, list):
        expected = json.loads(text)
        for item in [element for element in obj if _matches_item(element, sign, expected)]:
            if rest:
                _remove_path(item, rest)
            else:
                obj.remove(item)


def _matches_item(item: Any, sign: str, wanted: Any) -> bool:
    if sign == "v":
        return bool(item == wanted)
    return all(item.get(name, value) == value for name, value in wanted.items())


# FieldsV1


def _parse_owners(obj: Mapping[str, Any]) -> Owners:
    results: Owners = {}
    for entry in (obj.get("metadata") or {}).get("managedFields") or ():
        parts = (entry["manager"], entry["operation"], entry["apiVersion"])
        who = FieldManager((*parts, entry.get("subresource", "")))
        results[who] = frozenset(_parse_fields(entry["fieldsV1"], ()))
    return results


def _parse_fields(fields: Mapping[str, Any], path: Path) -> Iterator[Path]:
    for step, below in fields.items():
        if step == ".":
            yield path
        elif below:
            yield from _parse_fields(below, (*path, step))
        else:
            yield (*path, step)


def _with_owners(obj: Object, old: Object, owners: Owners, now: str) -> Object:
    before = _parse_owners(old)
    times = {
        FieldManager(
            (
                entry["manager"],
                entry["operation"],
                entry["apiVersion"],
                entry.get("subresource", ""),
            )
        ): entry["time"]
        for entry in (old.get("metadata") or {}).get("managedFields") or ()
    }
    entries = []
    for who, paths in owners.items():
        if not paths:
            continue
        same = before.get(who) == paths
        entry: Object = {
            "manager": who[0],
            "operation": who[1],
            "apiVersion": who[2],
            "time": times[who] if same else now,
            "fieldsType": "FieldsV1",
            "fieldsV1": _encode_fields(paths),
        }
        if who[3]:
            entry["subresource"] = who[3]
        entries.append(entry)
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return {**obj, "metadata": {**metadata, **({"managedFields": entries} if entries else {})}}


def _encode_fields(paths: frozenset[Path]) -> Object:
    root: Object = {}
    for path in sorted(paths):
        at = root
        for step in path:
            at = at.setdefault(step, {})
        if path[-1].startswith("k:"):
            at["."] = {}
    return root
