"""The runtimes that Kubeflow Trainer installs, under the names that clients use.

They are those of its ``manifests/base/runtimes``. Its images are replaced by ``--image`` or an
environment on a machine that cannot pull them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from danlu.training.train_job.schema import API_VERSION

FRAMEWORK_LABEL = "trainer.kubeflow.org/framework"
ANCESTOR_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"

_IMAGES = "ghcr.io/kubeflow/trainer"
# Name: the framework in its label, the ML policy, the image of its nodes.
_RUNTIMES: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "torch-distributed": (
        "torch",
        {"torch": {}},
        "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime",
    ),
    "jax-distributed": ("jax", {"jax": {}}, "nvcr.io/nvidia/jax:25.10-py3"),
    "xgboost-distributed": ("xgboost", {"xgboost": {}}, f"{_IMAGES}/xgboost-runtime"),
    # danlu's own, for programs of which Trainer has no runtime: a number of nodes.
    "plain-distributed": ("plain", {}, "python:3.11"),
}
RUNTIME_NAMES = tuple(_RUNTIMES)


def bundled_runtime(name: str) -> Mapping[str, Any] | None:
    """Return the ClusterTrainingRuntime called ``name``, None if danlu has none."""
    if name not in _RUNTIMES:
        return None
    framework, policy, image = _RUNTIMES[name]
    node = {
        "name": "node",
        "template": {
            "metadata": {"labels": {ANCESTOR_LABEL: "trainer"}},
            "spec": {"template": {"spec": {"containers": [{"name": "node", "image": image}]}}},
        },
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name, "labels": {FRAMEWORK_LABEL: framework}},
        "spec": {
            "mlPolicy": {"numNodes": 1, **policy},
            "template": {"spec": {"replicatedJobs": [node]}},
        },
    }
