"""Who owns which field, and server-side apply (structured-merge-diff, as far as ownership goes)."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from danlu.testing.kubernetes.kinds import Kind, ListShape, Shape
from danlu.testing.kubernetes.refusals import Cause, Refusal

__all__ = ["Manager", "applied", "updated"]

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


class Manager(tuple[str, str, str, str]):
    """Name, operation (``Apply`` or ``Update``), API version and subresource of who owns."""

    __slots__ = ()


Owners = dict[Manager, frozenset[Path]]


def updated(kind: Kind, old: Object, new: Object, who: Manager, now: str) -> Object:
    """``new`` with its managers: ``who`` owns what differs from ``old``."""
    before, after = _values(kind, old), _values(kind, new)
    changed = frozenset(path for path, value in after.items() if before.get(path, _NONE) != value)
    gone = before.keys() - after.keys()
    owners = _owners(old)
    taken = {one: paths - changed - gone for one, paths in owners.items() if one != who}
    taken[who] = (owners.get(who, frozenset()) - gone) | changed
    return _with_owners(new, old, taken, now)


_NONE = object()


def applied(
    kind: Kind, live: Object | None, config: Object, who: Manager, *, force: bool, now: str
) -> Object:
    """``live`` with what ``who`` wants of it; raises a refusal for fields of other managers."""
    wanted = _values(kind, config)
    owners = _owners(live or {})
    merged = _merge(copy.deepcopy(live or {}), config, (), kind.shape)
    before, after = _values(kind, live or {}), _values(kind, merged)
    changed = {path for path in wanted if before.get(path, _NONE) != after.get(path, _NONE)}
    clashes = {one: paths & changed for one, paths in owners.items() if one != who}
    if not force:
        _refuse(clashes)
    others = {one: paths - clashes[one] for one, paths in owners.items() if one != who}
    given_up = owners.get(who, frozenset()) - wanted.keys()
    for path in sorted(given_up, key=len, reverse=True):
        if not any(_holds(paths, path) for paths in others.values()):
            _remove(merged, path)
    others[who] = frozenset(wanted)
    return _with_owners(merged, live or {}, others, now)


def _holds(paths: frozenset[Path], path: Path) -> bool:
    return any(one[: len(path)] == path for one in paths)


def _refuse(clashes: Mapping[Manager, frozenset[Path]]) -> None:
    causes: list[Cause] = []
    for who, paths in clashes.items():
        using = f" with subresource {who[3]!r}" if who[3] else ""
        text = f'conflict with "{who[0]}"{using}'
        if who[1] != "Apply":
            text += f" using {who[2]}"
        causes += [
            {"reason": "FieldManagerConflict", "message": text, "field": _shown(path)}
            for path in sorted(paths)
        ]
    if not causes:
        return
    number = f"{len(causes)} conflict{'s' if len(causes) > 1 else ''}"
    said = "; ".join(f"{one['message']}: {one['field']}" for one in causes)
    raise Refusal(
        409,
        "Conflict",
        f"Apply failed with {number}: {said}",
        details={"causes": causes},
    )


def _shown(path: Path) -> str:
    text = ""
    for step in path:
        sign, _, rest = step.partition(":")
        if sign == "f":
            text += f".{rest}"
        elif sign == "k":
            pairs = ",".join(f"{name}={json.dumps(one)}" for name, one in json.loads(rest).items())
            text += f"[{pairs}]"
        else:
            text += f"[={rest}]"
    return text


# Values by path


def _values(kind: Kind, obj: Mapping[str, Any]) -> dict[Path, Any]:
    return dict(_walk(obj, (), (), kind.shape))


def _walk(value: Any, path: Path, names: Path, shape: Shape) -> Iterator[tuple[Path, Any]]:
    if names in _UNOWNED:
        return
    how = shape.get(names)
    if isinstance(value, dict) and (value or not path):
        for name, one in value.items():
            yield from _walk(one, (*path, f"f:{name}"), (*names, name), shape)
    elif isinstance(value, list) and how is not None and how.is_set:
        for one in value:
            yield (*path, f"v:{json.dumps(one)}"), one
    elif isinstance(value, list) and how is not None and how.keys:
        for item in value:
            inside = (*path, _key(item, how))
            yield inside, _ITEM
            for name, one in item.items():
                yield from _walk(one, (*inside, f"f:{name}"), (*names, "*", name), shape)
    elif path:
        yield path, value


def _key(item: Mapping[str, Any], how: ListShape) -> str:
    keys = {name: item.get(name, how.defaults.get(name)) for name in how.keys}
    return "k:" + json.dumps(keys, separators=(",", ":"))


def _merge(live: Any, config: Any, names: Path, shape: Shape) -> Any:
    how = shape.get(names)
    if isinstance(config, dict):
        result = dict(live) if isinstance(live, dict) else {}
        for name, value in config.items():
            if value is not None and (*names, name) != ("metadata", "managedFields"):
                result[name] = _merge(result.get(name), value, (*names, name), shape)
        return result
    if isinstance(config, list) and how is not None and (how.keys or how.is_set):
        return _merge_list(list(live or ()), config, names, shape, how)
    return copy.deepcopy(config)


def _merge_list(
    live: list[Any], config: Sequence[Any], names: Path, shape: Shape, how: ListShape
) -> list[Any]:
    if how.is_set:
        return live + [one for one in config if one not in live]
    places = {_key(item, how): number for number, item in enumerate(live)}
    for item in config:
        at = places.get(_key(item, how))
        merged = _merge(live[at] if at is not None else {}, item, (*names, "*"), shape)
        if at is None:
            live.append(merged)
        else:
            live[at] = merged
    return live


def _remove(obj: Any, path: Path) -> None:
    step, rest = path[0], path[1:]
    sign, _, text = step.partition(":")
    if sign == "f":
        if not isinstance(obj, dict) or text not in obj:
            return
        if not rest:
            del obj[text]
            return
        _remove(obj[text], rest)
        if obj[text] in ({}, []):
            del obj[text]
    elif isinstance(obj, list):
        wanted = json.loads(text)
        for item in [one for one in obj if _is(one, sign, wanted)]:
            if rest:
                _remove(item, rest)
            else:
                obj.remove(item)


def _is(item: Any, sign: str, wanted: Any) -> bool:
    if sign == "v":
        return bool(item == wanted)
    return all(item.get(name, value) == value for name, value in wanted.items())


# FieldsV1


def _owners(obj: Mapping[str, Any]) -> Owners:
    found: Owners = {}
    for entry in (obj.get("metadata") or {}).get("managedFields") or ():
        parts = (entry["manager"], entry["operation"], entry["apiVersion"])
        who = Manager((*parts, entry.get("subresource", "")))
        found[who] = frozenset(_paths(entry["fieldsV1"], ()))
    return found


def _paths(fields: Mapping[str, Any], path: Path) -> Iterator[Path]:
    for step, below in fields.items():
        if step == ".":
            yield path
        elif below:
            yield from _paths(below, (*path, step))
        else:
            yield (*path, step)


def _with_owners(obj: Object, old: Object, owners: Owners, now: str) -> Object:
    before = _owners(old)
    times = {
        Manager(
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
            "fieldsV1": _fields(paths),
        }
        if who[3]:
            entry["subresource"] = who[3]
        entries.append(entry)
    metadata = {name: one for name, one in obj["metadata"].items() if name != "managedFields"}
    return {**obj, "metadata": {**metadata, **({"managedFields": entries} if entries else {})}}


def _fields(paths: frozenset[Path]) -> Object:
    root: Object = {}
    for path in sorted(paths):
        at = root
        for step in path:
            at = at.setdefault(step, {})
        if path[-1].startswith("k:"):
            at["."] = {}
    return root
