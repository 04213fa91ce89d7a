"""Pods of replicas are the same as those of the training operator."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.training.framework import EnvVar, FieldRef
from danlu.training.frameworks.jax import JaxFramework
from danlu.training.manifest import read_job
from danlu.training.rendering import render_pod, type_labels
from danlu.training.topology import ServiceTopology
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology
from tests.training.manifests import KINDS, framework, manifest

P = "training.kubeflow.org"


def render_replica(
    job: Job, type: str, index: int = 0, *, for_cluster: bool = True
) -> dict[str, Any]:
    it = framework(job.kind)
    replica = ReplicaId(ReplicaType(type), index)
    return render_pod(job, it, replica, ServiceTopology(job, it), for_cluster=for_cluster)


def read(document: dict[str, Any]) -> Job:
    return read_job(document, framework(document["kind"]))


def environment(pod: dict[str, Any], container: int = 0) -> list[tuple[str, str]]:
    entries = pod["spec"]["containers"][container].get("env", [])
    return [(entry["name"], entry.get("value", "")) for entry in entries]


def test_complete_pod_of_a_pytorch_worker() -> None:
    document = manifest("PyTorchJob", Master=1, Worker=1)
    worker = document["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["restartPolicy"] = "ExitCode"
    template = worker["template"]
    template["metadata"] = {"labels": {"team": "a"}, "annotations": {"sidecar": "false"}}
    template["spec"]["restartPolicy"] = "Always"
    template["spec"]["containers"][0]["env"] = [{"name": "RANK", "value": "mine"}]
    pod = render_replica(read(document), "Worker", for_cluster=False)
    assert pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "job-worker-0",
            "namespace": "default",
            "annotations": {"sidecar": "false"},
            "labels": {
                "team": "a",
                f"{P}/job-name": "job",
                f"{P}/operator-name": "pytorchjob-controller",
                f"{P}/replica-type": "worker",
                f"{P}/replica-index": "0",
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "pytorch",
                    "image": "example/train:1",
                    "command": ["train"],
                    "ports": [{"name": "pytorchjob-port", "containerPort": 23456}],
                    "env": [
                        {"name": "RANK", "value": "mine"},
                        {"name": "PYTHONUNBUFFERED", "value": "1"},
                        {"name": "MASTER_PORT", "value": "23456"},
                        {"name": "PET_MASTER_PORT", "value": "23456"},
                        {"name": "MASTER_ADDR", "value": "job-master-0"},
                        {"name": "PET_MASTER_ADDR", "value": "job-master-0"},
                        {"name": "WORLD_SIZE", "value": "2"},
                        {"name": "RANK", "value": "1"},
                        {"name": "PET_NODE_RANK", "value": "1"},
                        {"name": "PET_NPROC_PER_NODE", "value": "auto"},
                        {"name": "PET_NNODES", "value": "2"},
                    ],
                }
            ],
        },
    }


def test_cluster_only_fields_are_omitted_for_a_local_job() -> None:
    job = read(manifest("PyTorchJob"))
    assert [
        container["name"] for container in render_replica(job, "Worker")["spec"]["initContainers"]
    ] == ["init-pytorch"]
    assert "initContainers" not in render_replica(job, "Worker", for_cluster=False)["spec"]


def test_sidecars_get_the_variables_except_for_tensorflow() -> None:
    sidecar = {"name": "proxy", "image": "proxy"}
    for kind, everywhere in (("PyTorchJob", True), ("TFJob", False)):
        document = manifest(kind)
        field = framework(kind).replicas_field
        document["spec"][field]["Worker"]["template"]["spec"]["containers"].insert(0, sidecar)
        pod = render_replica(read(document), "Worker")
        assert bool(environment(pod, 0)) is everywhere
        assert environment(pod, 1)


def test_sidecar_variables_of_the_manifest_are_kept() -> None:
    own = [{"name": "RANK", "value": "mine"}, {"name": "MASTER_PORT", "value": "1"}]
    document = manifest("PyTorchJob")
    field = framework("PyTorchJob").replicas_field
    containers = document["spec"][field]["Worker"]["template"]["spec"]["containers"]
    containers.append({"name": "proxy", "image": "proxy", "env": own})
    pod = render_replica(read(document), "Worker")
    results = [(entry["name"], entry["value"]) for entry in pod["spec"]["containers"][1]["env"]]
    assert results[:2] == [("RANK", "mine"), ("MASTER_PORT", "1")]
    assert "WORLD_SIZE" in dict(results)
    assert len({name for name, _ in results}) == len(results)


def test_tensorflow_job_with_one_replica_gets_no_variable() -> None:
    pod = render_replica(read(manifest("TFJob", Worker=1)), "Worker")
    assert "env" not in pod["spec"]["containers"][0]


def test_mpi_variables_go_to_the_first_container() -> None:
    document = manifest("MPIJob")
    for spec in document["spec"]["mpiReplicaSpecs"].values():
        spec["template"]["spec"]["containers"][0]["name"] = "program"
    job = read(document)
    assert environment(render_replica(job, "Launcher"))[0] == (
        "OMPI_MCA_plm_rsh_agent",
        "/etc/mpi/kubexec.sh",
    )
    assert environment(render_replica(job, "Worker")) == []
    assert render_replica(job, "Launcher")["metadata"]["name"] == "job-launcher"


def test_values_known_only_to_the_pod_are_field_references() -> None:
    class PodIpFramework(JaxFramework):
        def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
            return [("IP", FieldRef("status.podIP")), ("A", "b")]

    job = read(manifest("JAXJob"))
    framework = PodIpFramework()
    worker = ReplicaId(ReplicaType("Worker"), 0)
    pod = render_pod(job, framework, worker, ServiceTopology(job, framework))
    assert pod["spec"]["containers"][0]["env"] == [
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "A", "value": "b"},
    ]


@pytest.mark.parametrize(
    ("kind", "master"),
    [
        ("PyTorchJob", "job-master-0"),
        ("TFJob", "job-chief-0"),
        ("MPIJob", "job-launcher"),
        ("XGBoostJob", "job-master-0"),
        ("JAXJob", "job-worker-0"),
        ("MXJob", "job-server-0"),
    ],
)
def test_exactly_one_pod_has_the_master_role(kind: str, master: str) -> None:
    job = read(manifest(kind))
    pods = [
        render_replica(job, type, index)
        for type, spec in job.replicas.items()
        for index in range(spec.replicas)
    ]
    roles = {
        pod["metadata"]["name"]: pod["metadata"]["labels"].get(f"{P}/job-role") for pod in pods
    }
    assert [name for name, role in roles.items() if role == "master"] == [master]


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_pod_restart_policy_follows_the_replica_restart_policy(policy: str) -> None:
    document = manifest("JAXJob")
    document["spec"]["jaxReplicaSpecs"]["Worker"]["restartPolicy"] = policy
    assert render_replica(read(document), "Worker")["spec"]["restartPolicy"] == policy


@pytest.mark.parametrize("kind", KINDS)
def test_rendering_does_not_change_the_job(kind: str) -> None:
    job = read(manifest(kind))
    for type in job.replicas:
        render_replica(job, type)
    assert job == read(manifest(kind))


def test_labels_of_a_replica_type_select_its_replicas() -> None:
    job = read(manifest("TFJob"))
    expected = type_labels(job, framework("TFJob"), ReplicaType("PS"))
    assert expected.items() <= render_replica(job, "PS")["metadata"]["labels"].items()
    assert not expected.items() <= render_replica(job, "Worker")["metadata"]["labels"].items()
