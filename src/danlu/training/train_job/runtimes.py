"""The runtimes that Kubeflow Trainer installs, under the names that clients use.

They are those of its ``manifests/base/runtimes``. Its images are replaced by ``--image`` or an
environment on a machine that cannot pull them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from danlu.training.frameworks.train_job import (
    LAUNCHER,
    MPI,
    NODE,
    POLICIES,
    POLICIES_FIELD,
    find_policy,
)
from danlu.training.pod_template import append_to
from danlu.training.train_job.patches import merge_patch
from danlu.training.train_job.schema import API_VERSION

FRAMEWORK_LABEL = "trainer.kubeflow.org/framework"
ANCESTOR_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"

_SUFFIX = "-distributed"
#: For programs of which Trainer has no runtime; a number of nodes. This one is danlu's own.
_PLAIN = "plain"
#: What the runtimes for torchtune claim.
_CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}}
#: The frameworks with the policy mpi.
_MPI_NAMES = ("deepspeed", "mlx")
#: The user of their images, and the port of its ssh server.
_USER, _SSH_PORT = 1000, 2222
RUNTIME_NAMES = tuple(
    f"{name}{_SUFFIX}"
    for name in (*(name for name in POLICIES if name != MPI), *_MPI_NAMES, _PLAIN)
)


def name_bundled_runtime(policy: str) -> str:
    """Return the name of the runtime with a policy; an empty name means none."""
    return f"{_MPI_NAMES[0] if policy == MPI else policy or _PLAIN}{_SUFFIX}"


def bundled_runtime(name: str) -> Mapping[str, Any] | None:
    """Return the ClusterTrainingRuntime called ``name``, None if danlu has none."""
    if name not in RUNTIME_NAMES:
        return None
    framework = name.removesuffix(_SUFFIX)
    if framework in _MPI_NAMES:
        return _mpi_runtime(name, framework)
    policy: dict[str, Any] = {framework: {}} if framework in POLICIES else {}
    node = _replicated_job(NODE, {"image": find_policy(framework).image}, step="trainer")
    return _describe_runtime(name, framework, policy, {"replicatedJobs": [node]})


def installed_runtime(name: str) -> Mapping[str, Any] | None:
    """Return the runtime that is installed on a cluster under this name, likewise.

    Those of MPI also say who may read the keys of ssh, and when its servers listen.
    """
    runtime = bundled_runtime(name)
    if runtime is None or MPI not in runtime["spec"]["mlPolicy"]:
        return runtime
    user = {"name": NODE, "securityContext": {"runAsUser": _USER}}
    probe = {"readinessProbe": {"tcpSocket": {"port": _SSH_PORT}, "initialDelaySeconds": 5}}
    jobs = [
        {
            "name": job,
            "template": {
                "spec": {
                    "template": {
                        "spec": {
                            "securityContext": {"fsGroup": _USER},
                            "containers": [{**user, **more}],
                        }
                    }
                }
            },
        }
        for job, more in ((NODE, probe), (LAUNCHER, {}))
    ]
    patch = {
        "mlPolicy": {MPI: {"sshAuthMountPath": "/home/mpiuser/.ssh"}},
        "template": {
            "spec": {"network": {"publishNotReadyAddresses": True}, "replicatedJobs": jobs}
        },
    }
    return {**runtime, "spec": merge_patch(runtime["spec"], patch)}


def add_initializers(runtime: Mapping[str, Any], fields: Iterable[str]) -> Mapping[str, Any]:
    """Return a runtime with an initializer for each field of ``spec.initializer``.

    They share a claim with the other replicated jobs, which wait for them, as in Kubeflow Trainer's
    runtimes for torchtune; its others have none.
    """
    steps = [f"{field}-initializer" for field in fields]
    if not steps:
        return runtime
    mounts = {"volumeMounts": [{"name": "initializer", "mountPath": "/workspace"}]}
    template = runtime["spec"]["template"]["spec"]
    initializers = [
        _replicated_job(
            step, {"name": step, "image": f"ghcr.io/kubeflow/trainer/{step}", **mounts}, step
        )
        for step in steps
    ]
    waits = [{"name": step, "status": "Complete"} for step in steps]
    jobs = [
        {
            **append_to(job, "dependsOn", *waits),
            "template": merge_patch(
                job["template"],
                {"spec": {"template": {"spec": {"containers": [{"name": NODE, **mounts}]}}}},
            ),
        }
        for job in template["replicatedJobs"]
    ]
    claim = {"metadata": {"name": "initializer"}, "spec": _CLAIM}
    changed = {
        **template,
        POLICIES_FIELD: [{"templates": [claim]}],
        "replicatedJobs": [*initializers, *jobs],
    }
    return {**runtime, "spec": {**runtime["spec"], "template": {"spec": changed}}}


def _mpi_runtime(name: str, framework: str) -> Mapping[str, Any]:
    """Return a runtime whose launcher is a node, too, and decides the job."""
    image = f"ghcr.io/kubeflow/trainer/{framework}-runtime"
    server = {"command": ["/usr/sbin/sshd"], "args": ["-De", "-f", "/home/mpiuser/.sshd_config"]}
    waits = {"dependsOn": [{"name": NODE, "status": "Ready"}]}
    template = {
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [LAUNCHER]},
        "replicatedJobs": [
            _replicated_job(NODE, {"image": image, **server}),
            {**_replicated_job(LAUNCHER, {"image": image}, step="trainer"), **waits},
        ],
    }
    policy = {"numProcPerNode": 1, "mpiImplementation": "OpenMPI", "runLauncherAsNode": True}
    return _describe_runtime(name, framework, {MPI: policy}, template)


def _replicated_job(name: str, container: Mapping[str, Any], step: str = "") -> dict[str, Any]:
    labels = {"metadata": {"labels": {ANCESTOR_LABEL: step}}} if step else {}
    pod = {"spec": {"containers": [{"name": "node", **container}]}}
    return {"name": name, "template": {**labels, "spec": {"template": pod}}}


def _describe_runtime(
    name: str, framework: str, policy: Mapping[str, Any], template: Mapping[str, Any]
) -> Mapping[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name, "labels": {FRAMEWORK_LABEL: framework}},
        "spec": {"mlPolicy": {"numNodes": 1, **policy}, "template": {"spec": template}},
    }
