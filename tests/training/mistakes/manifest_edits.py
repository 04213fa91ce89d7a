"""Ways to introduce one mistake into a valid PyTorchJob."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Spoil = Callable[[dict[str, Any]], object]

Mistake = tuple[Spoil, str, str, str]
"""The change that makes it; the path, message and hint of its finding."""

R = "spec.pytorchReplicaSpecs"
W = f"{R}[Worker]"
POD = f"{W}.template.spec"
BOX = f"{POD}.containers[0]"
LABEL_HINT = "use lower-case letters, digits and '-', at most 63 characters"


def worker_spec(document: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = document["spec"]["pytorchReplicaSpecs"]["Worker"]
    return results


def pod_spec(document: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = worker_spec(document)["template"]["spec"]
    return results


def first_container(document: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = pod_spec(document)["containers"][0]
    return results


def set_spec(**fields: Any) -> Spoil:
    return lambda it: it["spec"].update(fields)


def set_run_policy(**fields: Any) -> Spoil:
    return set_spec(runPolicy=fields)


def set_scheduling_policy(**fields: Any) -> Spoil:
    return set_run_policy(schedulingPolicy=fields)


def set_elastic_policy(**fields: Any) -> Spoil:
    return set_spec(elasticPolicy=fields)


def set_metadata(**fields: Any) -> Spoil:
    return lambda it: it["metadata"].update(fields)


def change_worker(**fields: Any) -> Spoil:
    return lambda it: worker_spec(it).update(fields)


def change_pod(**fields: Any) -> Spoil:
    return lambda it: pod_spec(it).update(fields)


def change_container(**fields: Any) -> Spoil:
    return lambda it: first_container(it).update(fields)


def rename_replicas(old: str, new: str) -> Spoil:
    def change_field(it: dict[str, Any]) -> None:
        replicas = it["spec"]["pytorchReplicaSpecs"]
        replicas[new] = replicas.pop(old)

    return change_field


def unknown_field(hint: str) -> tuple[str, str]:
    return "unknown field", hint
