"""The runtimes that Kubeflow Trainer installs, under the names that clients use.

They are those of its ``manifests/base/runtimes``. Its images are replaced by ``--image`` or an
environment on a machine that cannot pull them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from danlu.training.frameworks.train_job import POLICIES, find_policy
from danlu.training.train_job.schema import API_VERSION

FRAMEWORK_LABEL = "trainer.kubeflow.org/framework"
ANCESTOR_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"

_SUFFIX = "-distributed"
#: For programs of which Trainer has no runtime; a number of nodes. This one is danlu's own.
_PLAIN = "plain"
RUNTIME_NAMES = tuple(f"{name}{_SUFFIX}" for name in (*POLICIES, _PLAIN))


def name_bundled_runtime(policy: str) -> str:
    """Return the name of the runtime with a policy; an empty name means none."""
    return f"{policy or _PLAIN}{_SUFFIX}"


def bundled_runtime(name: str) -> Mapping[str, Any] | None:
    """Return the ClusterTrainingRuntime called ``name``, None if danlu has none."""
    if name not in RUNTIME_NAMES:
        return None
    framework = name.removesuffix(_SUFFIX)
    policy: dict[str, Any] = {framework: {}} if framework in POLICIES else {}
    image = find_policy(framework).image
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
