"""The scale subresource: how many replicas are wanted and there, of any kind that says where."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from danlu.testing.kubernetes.kinds import Kind
from danlu.testing.kubernetes.refusals import bad_request

__all__ = ["scale_of", "scaled"]

Object = dict[str, Any]


def scale_of(kind: Kind, obj: Mapping[str, Any]) -> Object:
    """The Scale (autoscaling/v1) of an object."""
    where = kind.scale
    assert where is not None
    metadata = obj["metadata"]
    status: Object = {"replicas": _at(obj, where.status) or 0}
    if where.selector and (selector := _at(obj, where.selector)):
        status["selector"] = selector
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "spec": {"replicas": _at(obj, where.replicas) or 0},
        "status": status,
    }


def scaled(kind: Kind, obj: Object, scale: Mapping[str, Any]) -> Object:
    """The object with the number of replicas that a Scale wants."""
    assert kind.scale is not None
    wanted = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(wanted, int) or wanted < 0:
        raise bad_request("spec.replicas: Invalid value: should be greater than or equal to 0")
    new = copy.deepcopy(obj)
    at = new
    *steps, last = kind.scale.replicas.strip(".").split(".")
    for step in steps:
        at = at.setdefault(step, {})
    at[last] = wanted
    if version := (scale.get("metadata") or {}).get("resourceVersion"):
        new["metadata"]["resourceVersion"] = version
    return new


def _at(obj: Mapping[str, Any], path: str) -> Any:
    found: Any = obj
    for step in path.strip(".").split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
