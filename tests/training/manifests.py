"""Valid manifests of every kind, which tests then modify."""

from __future__ import annotations

import copy
from typing import Any

from danlu.training.document import ManifestError
from danlu.training.framework import FieldError, Framework
from danlu.training.manifest import read_job
from danlu.training.registry import list_frameworks

KINDS = {framework.kind: framework for framework in list_frameworks()}

SIZES: dict[str, dict[str, int]] = {
    "PyTorchJob": {"Master": 1, "Worker": 2},
    "TFJob": {"Chief": 1, "PS": 1, "Worker": 2},
    "MPIJob": {"Launcher": 1, "Worker": 2},
    "XGBoostJob": {"Master": 1, "Worker": 2},
    "PaddleJob": {"Worker": 2},
    "JAXJob": {"Worker": 2},
    "MXJob": {"Scheduler": 1, "Server": 1, "Worker": 2},
}


def framework(kind: str) -> Framework:
    return KINDS[kind]


def manifest(kind: str = "PyTorchJob", **replicas: int) -> dict[str, Any]:
    """Return a small job of this kind with one container per pod."""
    it = KINDS[kind]
    container = {"name": it.container, "image": "example/train:1", "command": ["train"]}
    specs = {
        type: {"replicas": number, "template": {"spec": {"containers": [dict(container)]}}}
        for type, number in (replicas or SIZES[kind]).items()
    }
    return copy.deepcopy(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": kind,
            "metadata": {"name": "job"},
            "spec": {it.replicas_field: specs},
        }
    )


def find_mistakes(document: dict[str, Any], framework: Framework) -> tuple[FieldError, ...]:
    """Return what is wrong with a manifest."""
    try:
        read_job(document, framework)
    except ManifestError as error:
        return error.findings
    return ()
