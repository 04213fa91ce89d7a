"""The pods of replicas are those that the training operator makes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from danlu.training.framework import FieldRef
from danlu.training.manifest import read_job
from danlu.training.rendering import render_pod, type_labels
from danlu.training.topology import ServiceTopology
from danlu.training.types import Job, ReplicaId, ReplicaType
from tests.training.manifests import KINDS, framework, manifest

P = "training.kubeflow.org"


def rendered(job: Job, type: str, index: int = 0, *, decorated: bool = True) -> dict[str, Any]:
    it = framework(job.kind)
    replica = ReplicaId(ReplicaType(type), index)
    return render_pod(job, it, replica, ServiceTopology(job), decorated=decorated)


def read(document: dict[str, Any]) -> Job:
    return read_job(document, framework(document["kind"]))


def environment(pod: dict[str, Any], container: int = 0) -> list[tuple[str, str]]:
    entries = pod["spec"]["containers"][container].get("env", [])
    return [(entry["name"], entry.get("value", "")) for entry in entries]


def test_a_pytorch_worker_whole() -> None:
    document = manifest("PyTorchJob", Master=1, Worker=1)
    worker = document["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["restartPolicy"] = "ExitCode"
    template = worker["template"]
    template["metadata"] = {"labels": {"team": "a"}, "annotations": {"sidecar": "false"}}
    template["spec"]["restartPolicy"] = "Always"
    template["spec"]["containers"][0]["env"] = [{"name": "RANK", "value": "mine"}]
    pod = rendered(read(document), "Worker", decorated=False)
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


def test_what_a_cluster_alone_needs_is_left_out_where_it_is_not_asked_for() -> None:
    job = read(manifest("PyTorchJob"))
    assert [one["name"] for one in rendered(job, "Worker")["spec"]["initContainers"]] == [
        "init-pytorch"
    ]
    assert "initContainers" not in rendered(job, "Worker", decorated=False)["spec"]


def test_sidecars_get_the_variables_too_but_not_of_tensorflow() -> None:
    sidecar = {"name": "proxy", "image": "proxy"}
    for kind, everywhere in (("PyTorchJob", True), ("TFJob", False)):
        document = manifest(kind)
        field = framework(kind).replicas_field
        document["spec"][field]["Worker"]["template"]["spec"]["containers"].insert(0, sidecar)
        pod = rendered(read(document), "Worker")
        assert bool(environment(pod, 0)) is everywhere
        assert environment(pod, 1)


def test_a_tensorflow_job_of_one_replica_gets_no_variable() -> None:
    pod = rendered(read(manifest("TFJob", Worker=1)), "Worker")
    assert "env" not in pod["spec"]["containers"][0]


def test_variables_of_mpi_go_to_the_first_container_whatever_its_name() -> None:
    document = manifest("MPIJob")
    for spec in document["spec"]["mpiReplicaSpecs"].values():
        spec["template"]["spec"]["containers"][0]["name"] = "program"
    job = read(document)
    assert environment(rendered(job, "Launcher"))[0] == (
        "OMPI_MCA_plm_rsh_agent",
        "/etc/mpi/kubexec.sh",
    )
    assert environment(rendered(job, "Worker")) == []
    assert rendered(job, "Launcher")["metadata"]["name"] == "job-launcher"


def test_what_only_the_pod_knows_is_a_field_reference() -> None:
    it = dataclasses.replace(
        framework("JAXJob"),
        environment=lambda job, replica, topology: [("IP", FieldRef("status.podIP")), ("A", "b")],
    )
    job = read(manifest("JAXJob"))
    pod = render_pod(job, it, ReplicaId(ReplicaType("Worker"), 0), ServiceTopology(job))
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
def test_one_pod_has_the_role_of_master(kind: str, master: str) -> None:
    job = read(manifest(kind))
    pods = [
        rendered(job, type, index)
        for type, spec in job.replicas.items()
        for index in range(spec.replicas)
    ]
    roles = {
        pod["metadata"]["name"]: pod["metadata"]["labels"].get(f"{P}/job-role") for pod in pods
    }
    assert [name for name, role in roles.items() if role == "master"] == [master]


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_the_kubelet_restarts_what_the_policy_says(policy: str) -> None:
    document = manifest("JAXJob")
    document["spec"]["jaxReplicaSpecs"]["Worker"]["restartPolicy"] = policy
    assert rendered(read(document), "Worker")["spec"]["restartPolicy"] == policy


@pytest.mark.parametrize("kind", KINDS)
def test_rendering_leaves_the_job_as_it_was(kind: str) -> None:
    job = read(manifest(kind))
    for type in job.replicas:
        rendered(job, type)
    assert job == read(manifest(kind))


def test_labels_of_a_type_select_its_replicas() -> None:
    job = read(manifest("TFJob"))
    wanted = type_labels(job, framework("TFJob"), ReplicaType("PS"))
    assert wanted.items() <= rendered(job, "PS")["metadata"]["labels"].items()
    assert not wanted.items() <= rendered(job, "Worker")["metadata"]["labels"].items()
