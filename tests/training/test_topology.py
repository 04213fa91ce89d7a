"""Names and ports of replicas on a cluster are Kubeflow's."""

from __future__ import annotations

import pytest

from danlu.training.manifest import read_job
from danlu.training.topology import ServiceTopology, declared_port
from danlu.training.types import Job, ReplicaId, ReplicaType
from tests.training.manifests import KINDS, framework, manifest

WORKER_1 = ReplicaId(ReplicaType("Worker"), 1)
PORTS = {
    "PyTorchJob": 23456,
    "TFJob": 2222,
    "MPIJob": 9999,
    "XGBoostJob": 9999,
    "PaddleJob": 36543,
    "JAXJob": 6666,
    "MXJob": 9091,
}


def job(kind: str = "PyTorchJob", namespace: str = "team-a") -> Job:
    document = manifest(kind)
    document["metadata"] = {"name": "mnist", "namespace": namespace}
    return read_job(document, framework(kind))


def test_a_replica_is_reached_by_its_bare_name_in_its_namespace() -> None:
    assert ServiceTopology(job()).host(WORKER_1) == "mnist-worker-1"


@pytest.mark.parametrize(
    ("domain", "name"),
    [
        ("", "mnist-worker-1.team-a.svc"),
        ("cluster.example", "mnist-worker-1.team-a.svc.cluster.example"),
    ],
)
def test_the_qualified_name_has_the_namespace_and_the_domain(domain: str, name: str) -> None:
    assert ServiceTopology(job(), domain).host(WORKER_1, qualified=True) == name


@pytest.mark.parametrize("kind", KINDS)
def test_the_port_is_the_framework_s_unless_declared(kind: str) -> None:
    assert ServiceTopology(job(kind)).port(WORKER_1) == PORTS[kind]


def test_a_declared_port_holds_for_the_replicas_that_declare_it() -> None:
    document = manifest()
    spec = document["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["containers"][0]["ports"] = [
        {"name": "metrics", "containerPort": 1},
        {"name": "pytorchjob-port", "containerPort": 29500},
    ]
    sidecar = {"name": "pytorchjob-port", "containerPort": 7}
    spec["containers"].insert(0, {"name": "proxy", "image": "proxy", "ports": [sidecar]})
    it = framework("PyTorchJob")
    topology = ServiceTopology(read_job(document, it), framework=it)
    assert topology.port(WORKER_1) == 29500
    assert topology.port(ReplicaId(ReplicaType("Master"), 0)) == 23456


def test_a_type_that_the_job_lacks_has_the_framework_s_port() -> None:
    found = declared_port(job("JAXJob"), ReplicaId(ReplicaType("Master"), 0), framework("JAXJob"))
    assert found == 6666


def test_the_files_of_mpi_are_where_kubeflow_mounts_them() -> None:
    assert ServiceTopology(job("MPIJob")).directory(WORKER_1) == "/etc/mpi"
