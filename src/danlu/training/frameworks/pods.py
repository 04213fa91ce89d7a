"""What frameworks read in a pod's template, and small changes of it that leave it as it was."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from danlu.training.framework import Template, Variable
from danlu.training.types import Job, ReplicaId

__all__ = [
    "compact_json",
    "containers",
    "extended",
    "given",
    "main_container",
    "unless_given",
    "with_containers",
    "with_metadata",
    "with_spec",
]

# What encoding/json writes in place of characters that HTML or JavaScript would trip over.
_GO_ESCAPES = {ord(one): f"\\u{ord(one):04x}" for one in "<>&\u2028\u2029"}


def compact_json(value: object) -> str:
    """JSON exactly as Go's ``encoding/json`` writes it, so that whole variables can be compared.

    Keys stay in the order of ``value``: Go sorts those of maps, and keeps those of structs.
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.translate(_GO_ESCAPES)


def containers(template: Template) -> tuple[Mapping[str, Any], ...]:
    """The containers of a pod, init containers not among them."""
    return tuple((template.get("spec") or {}).get("containers") or ())


def main_container(template: Template, name: str) -> Mapping[str, Any]:
    """The container called ``name``, else the first one; empty where there is none."""
    all = containers(template)
    return next((one for one in all if one.get("name") == name), all[0] if all else {})


def given(job: Job, replica: ReplicaId, container: str) -> frozenset[str]:
    """The names of the variables that the manifest itself sets in the main container."""
    spec = job.replicas.get(replica.type)
    main = main_container(spec.template, container) if spec else {}
    return frozenset(one.get("name", "") for one in main.get("env") or ())


def unless_given(
    job: Job, replica: ReplicaId, container: str, variables: Iterable[Variable]
) -> list[Variable]:
    """Those of ``variables`` that the manifest does not set.

    Kubeflow's variables override the user's; those that only danlu adds never do.
    """
    known = given(job, replica, container)
    return [(name, value) for name, value in variables if name not in known]


def extended(mapping: Mapping[str, Any], key: str, *items: object) -> dict[str, Any]:
    """``mapping`` with ``items`` after those of its list ``key``."""
    return {**mapping, key: [*(mapping.get(key) or ()), *items]}


def with_spec(template: Template, spec: Mapping[str, Any]) -> dict[str, Any]:
    """``template`` with some fields of its spec set."""
    return {**template, "spec": {**(template.get("spec") or {}), **spec}}


def with_metadata(template: Template, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """``template`` with some fields of its metadata set."""
    return {**template, "metadata": {**(template.get("metadata") or {}), **metadata}}


def with_containers(
    template: Template, changed: Mapping[str, Any], instead_of: Mapping[str, Any]
) -> dict[str, Any]:
    """``template`` with one of its containers changed."""
    new = [changed if one is instead_of else one for one in containers(template)]
    return with_spec(template, {"containers": new})
