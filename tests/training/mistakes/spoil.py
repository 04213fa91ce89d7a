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


def worker(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["spec"]["pytorchReplicaSpecs"]["Worker"]
    return found


def pod(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = worker(document)["template"]["spec"]
    return found


def box(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod(document)["containers"][0]
    return found


def spec(**fields: Any) -> Spoil:
    return lambda it: it["spec"].update(fields)


def policy(**fields: Any) -> Spoil:
    return spec(runPolicy=fields)


def gang(**fields: Any) -> Spoil:
    return policy(schedulingPolicy=fields)


def elastic(**fields: Any) -> Spoil:
    return spec(elasticPolicy=fields)


def meta(**fields: Any) -> Spoil:
    return lambda it: it["metadata"].update(fields)


def of_worker(**fields: Any) -> Spoil:
    return lambda it: worker(it).update(fields)


def of_pod(**fields: Any) -> Spoil:
    return lambda it: pod(it).update(fields)


def of_box(**fields: Any) -> Spoil:
    return lambda it: box(it).update(fields)


def renamed(old: str, new: str) -> Spoil:
    def spoil(it: dict[str, Any]) -> None:
        replicas = it["spec"]["pytorchReplicaSpecs"]
        replicas[new] = replicas.pop(old)

    return spoil


def unknown(hint: str) -> tuple[str, str]:
    return "unknown field", hint
