"""The scale subresource: desired and current replicas of a kind that declares their paths."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tests.fakes.kubernetes.kinds import ResourceKind
from tests.fakes.kubernetes.status_errors import bad_request

__all__ = ["apply_scale", "render_scale"]

Object = dict[str, Any]


def render_scale(kind: ResourceKind, obj: Mapping[str, Any]) -> Object:
    """Return the Scale (autoscaling/v1) of an object."""
    where = kind.scale
    assert where is not None
    metadata = obj["metadata"]
    status: Object = {"replicas": _value_at(obj, where.status) or 0}
    if where.selector and (selector := _value_at(obj, where.selector)):
        status["selector"] = selector
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "spec": {"replicas": _value_at(obj, where.replicas) or 0},
        "status": status,
    }


def apply_scale(kind: ResourceKind, obj: Object, scale: Mapping[str, Any]) -> Object:
    """Return the object with the number of replicas of a Scale."""
    assert kind.scale is not None
    expected = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(expected, int) or expected < 0:
        raise bad_request("spec.replicas: Invalid value: should be greater than or equal to 0")
    new = copy.deepcopy(obj)
    at = new
    *steps, last = kind.scale.replicas.strip(".").split(".")
    for step in steps:
        at = at.setdefault(step, {})
    at[last] = expected
    if version := (scale.get("metadata") or {}).get("resourceVersion"):
        new["metadata"]["resourceVersion"] = version
    return new


def _value_at(obj: Mapping[str, Any], path: str) -> Any:
    result: Any = obj
    for step in path.strip(".").split("."):
        result = result.get(step) if isinstance(result, Mapping) else None
    return result
