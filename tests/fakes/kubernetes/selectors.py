"""Label and field selectors of requests (apimachinery, labels and fields)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes.kubernetes.kinds import ResourceKind, no_fields
from tests.fakes.kubernetes.status_errors import bad_request

__all__ = ["Selector", "parse_selectors"]

Object = dict[str, Any]
Selector = Callable[[Object], bool]
_Test = Callable[[Mapping[str, str]], bool]

_KEY = r"[A-Za-z0-9][-A-Za-z0-9_./]*"
_SET = re.compile(rf"\s*({_KEY})\s+(in|notin)\s*\(([^)]*)\)\s*")
_EQUAL = re.compile(rf"\s*({_KEY})\s*(==|=|!=)\s*([-A-Za-z0-9_.]*)\s*")
_EXISTS = re.compile(rf"\s*(!?)\s*({_KEY})\s*")
_COMMA = re.compile(r",(?![^(]*\))")


def parse_selectors(kind: ResourceKind, *, labels: str, fields: str) -> Selector:
    """Return a predicate for both selectors; raises StatusError for invalid ones."""
    by_label = [_label_test(part) for part in _COMMA.split(labels) if labels.strip()]
    by_field = [_field_test(part) for part in fields.split(",") if fields.strip()]

    def fits(obj: Object) -> bool:
        carried = obj["metadata"].get("labels") or {}
        return all(test(carried) for test in by_label) and all(
            test(_fields_of(kind, obj)) for test in by_field
        )

    for part in fields.split(",") if fields.strip() else ():
        _check_field(kind, _split_field(part)[0])
    return fits


def _label_test(part: str) -> _Test:
    if match := _SET.fullmatch(part):
        key, values = match[1], {value.strip() for value in match[3].split(",")}
        if match[2] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _EQUAL.fullmatch(part):
        key, value = match[1], match[3]
        if match[2] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _EXISTS.fullmatch(part):
        key, expected = match[2], not match[1]
        return lambda labels: (key in labels) is expected
    raise bad_request(f"unable to parse requirement: {part!r}")


def _split_field(part: str) -> tuple[str, str, bool]:
    for sign, equal in (("!=", False), ("==", True), ("=", True)):
        name, result, value = part.partition(sign)
        if result:
            return name.strip(), value.strip(), equal
    raise bad_request(f"invalid selector: {part!r}; can't understand {part!r}")


def _field_test(part: str) -> _Test:
    name, value, equal = _split_field(part)
    return lambda fields: (fields.get(name, "") == value) is equal


def _fields_of(kind: ResourceKind, obj: Object) -> Mapping[str, str]:
    metadata = obj["metadata"]
    both = {"metadata.name": metadata["name"]}
    if kind.namespaced:
        both["metadata.namespace"] = metadata.get("namespace", "")
    return {**both, **kind.rules.fields(obj)}


def _check_field(kind: ResourceKind, name: str) -> None:
    known = _fields_of(kind, {"metadata": {"name": "", "namespace": ""}, "spec": {}, "status": {}})
    if name in known:
        return
    if kind.rules.fields is no_fields:
        output = ", ".join(f'"{field}"' for field in known)
        raise bad_request(f'"{name}" is not a known field selector: only {output}')
    raise bad_request(f"field label not supported: {name}")
