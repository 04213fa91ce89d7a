"""Names and ports of replicas on a cluster are the same as in Kubeflow."""

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


def topology(kind: str = "PyTorchJob", domain: str = "") -> ServiceTopology:
    return ServiceTopology(job(kind), framework(kind), domain)


def test_replica_host_is_its_name_within_the_namespace() -> None:
    assert topology().host(WORKER_1) == "mnist-worker-1"


@pytest.mark.parametrize(
    ("domain", "name"),
    [
        ("", "mnist-worker-1.team-a.svc"),
        ("cluster.example", "mnist-worker-1.team-a.svc.cluster.example"),
    ],
)
def test_qualified_host_has_namespace_and_domain(domain: str, name: str) -> None:
    assert topology(domain=domain).host(WORKER_1, qualified=True) == name


@pytest.mark.parametrize("kind", KINDS)
def test_port_defaults_to_the_framework_port(kind: str) -> None:
    assert topology(kind).port(WORKER_1) == PORTS[kind]


def test_declared_port_applies_to_its_replica_type() -> None:
    document = manifest()
    spec = document["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["containers"][0]["ports"] = [
        {"name": "metrics", "containerPort": 1},
        {"name": "pytorchjob-port", "containerPort": 29500},
    ]
    sidecar = {"name": "pytorchjob-port", "containerPort": 7}
    spec["containers"].insert(0, {"name": "proxy", "image": "proxy", "ports": [sidecar]})
    it = framework("PyTorchJob")
    declared = ServiceTopology(read_job(document, it), it)
    assert declared.port(WORKER_1) == 29500
    assert declared.port(ReplicaId(ReplicaType("Master"), 0)) == 23456


def test_missing_replica_type_has_the_framework_port() -> None:
    result = declared_port(job("JAXJob"), ReplicaId(ReplicaType("Master"), 0), framework("JAXJob"))
    assert result == 6666


def test_mpi_files_are_mounted_as_in_kubeflow() -> None:
    assert topology("MPIJob").directory(WORKER_1) == "/etc/mpi"
