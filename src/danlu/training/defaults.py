"""What a manifest leaves out, filled in as Kubeflow's operator does (``*_defaults.go``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from danlu.training.framework import Framework
from danlu.training.frameworks.pods import extended, main_container, with_containers
from danlu.training.types import (
    ElasticPolicy,
    ReplicaSpec,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)

__all__ = ["elastic_policy", "replica_spec", "replica_type", "run_policy", "with_port"]

_WORKER = ReplicaType("Worker")


def replica_type(name: str, framework: Framework) -> ReplicaType | None:
    """The replica type that ``name`` means, in any letter case; None where there is none."""
    folded = name.casefold()
    return next((type for type in framework.types if type.casefold() == folded), None)


def replica_spec(spec: Mapping[str, Any], type: ReplicaType, framework: Framework) -> ReplicaSpec:
    """A member of the replica map with its number, its restart policy and its port."""
    replicas = spec.get("replicas")
    return ReplicaSpec(
        replicas=framework.defaults.get(type, 1) if replicas is None else replicas,
        template=with_port(spec["template"], framework),
        restart_policy=RestartPolicy(spec.get("restartPolicy") or framework.restart_policy),
    )


def with_port(template: Mapping[str, Any], framework: Framework) -> Mapping[str, Any]:
    """``template`` whose main container declares the framework's port, by name.

    A framework whose program may be in any container (MPI) has none declared.
    """
    main = main_container(template, framework.container)
    ports = main.get("ports") or ()
    if framework.any_container or any(one.get("name") == framework.port_name for one in ports):
        return template
    port = {"name": framework.port_name, "containerPort": framework.port}
    return with_containers(template, extended(main, "ports", port), main)


def run_policy(spec: Mapping[str, Any]) -> RunPolicy:
    """``spec.runPolicy``; an MPIJob's older ``spec.cleanPodPolicy`` counts where it names none."""
    policy = _without_nothing(spec.get("runPolicy") or {})
    legacy = spec.get("cleanPodPolicy")
    if legacy:
        policy.setdefault("cleanPodPolicy", legacy)
    if "schedulingPolicy" in policy:
        policy["schedulingPolicy"] = _without_nothing(policy["schedulingPolicy"])
    return msgspec.convert(policy, RunPolicy)


def elastic_policy(
    spec: Mapping[str, Any], replicas: Mapping[ReplicaType, ReplicaSpec]
) -> ElasticPolicy | None:
    """``spec.elasticPolicy`` with both bounds: each from the other, or from the workers."""
    if spec.get("elasticPolicy") is None:
        return None
    policy = msgspec.convert(_without_nothing(spec["elasticPolicy"]), ElasticPolicy)
    least, most = policy.min_replicas, policy.max_replicas
    asked = replicas[_WORKER].replicas if _WORKER in replicas else None
    return msgspec.structs.replace(
        policy,
        min_replicas=_first(least, most, asked),
        max_replicas=_first(most, least, asked),
    )


def _first(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)


def _without_nothing(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Without the fields that say nothing: null, and empty text."""
    return {name: value for name, value in mapping.items() if value is not None and value != ""}
