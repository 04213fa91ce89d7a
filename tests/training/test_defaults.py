"""Defaults follow the rules of Kubeflow (``*_defaults_test.go``)."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.training.manifest import read_job
from danlu.training.types import CleanPodPolicy, ElasticPolicy, Job, ReplicaType, RestartPolicy
from tests.training.manifests import KINDS, framework, manifest

WORKER = ReplicaType("Worker")

# The table of kubeflow.org/v1: container, port, restart policy.
TABLE = {
    "TFJob": ("tensorflow", "tfjob-port", 2222, RestartPolicy.NEVER),
    "PyTorchJob": ("pytorch", "pytorchjob-port", 23456, RestartPolicy.ON_FAILURE),
    "XGBoostJob": ("xgboost", "xgboostjob-port", 9999, RestartPolicy.NEVER),
    "PaddleJob": ("paddle", "master", 36543, RestartPolicy.ON_FAILURE),
    "JAXJob": ("jax", "jaxjob-port", 6666, RestartPolicy.NEVER),
    "MXJob": ("mxnet", "mxjob-port", 9091, RestartPolicy.NEVER),
}


def read(document: dict[str, Any]) -> Job:
    return read_job(document, framework(document["kind"]))


def containers(job: Job, type: str = "Worker") -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = job.replicas[ReplicaType(type)].template["spec"]["containers"]
    return results


def replicas(document: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = document["spec"][framework(document["kind"]).replicas_field]
    return results


@pytest.mark.parametrize("kind", TABLE)
def test_port_and_restart_policy_of_each_kind(kind: str) -> None:
    container, name, number, policy = TABLE[kind]
    job = read(manifest(kind))
    for type, spec in job.replicas.items():
        assert containers(job, type) == [
            {
                "name": container,
                "image": "example/train:1",
                "command": ["train"],
                "ports": [{"name": name, "containerPort": number}],
            }
        ]
        assert spec.restart_policy is policy


def test_mpi_job_has_no_port_and_never_restarts() -> None:
    job = read(manifest("MPIJob"))
    assert all("ports" not in containers(job, type)[0] for type in job.replicas)
    assert {spec.restart_policy for spec in job.replicas.values()} == {RestartPolicy.NEVER}


@pytest.mark.parametrize("kind", KINDS)
def test_replicas_default_to_one_but_mpi_workers_to_zero(kind: str) -> None:
    document = manifest(kind)
    for spec in replicas(document).values():
        spec.pop("replicas")
    for type, spec in read(document).replicas.items():
        assert spec.replicas == (0 if (kind, type) == ("MPIJob", "Worker") else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_run_policy_defaults_to_no_cleanup_and_no_limits(kind: str) -> None:
    policy = read(manifest(kind)).run_policy
    assert policy.clean_pod_policy is CleanPodPolicy.NONE
    assert (policy.backoff_limit, policy.active_deadline_seconds) == (None, None)
    assert (policy.ttl_seconds_after_finished, policy.suspend) == (None, False)


def test_declared_port_is_kept_and_other_ports_remain() -> None:
    document = manifest("PyTorchJob")
    own = {"name": "pytorchjob-port", "containerPort": 29500}
    other = {"name": "metrics", "containerPort": 8080}
    replicas(document)["Master"]["template"]["spec"]["containers"][0]["ports"] = [own]
    replicas(document)["Worker"]["template"]["spec"]["containers"][0]["ports"] = [other]
    job = read(document)
    assert containers(job, "Master")[0]["ports"] == [own]
    assert containers(job)[0]["ports"] == [
        other,
        {"name": "pytorchjob-port", "containerPort": 23456},
    ]


def test_default_port_is_added_to_the_main_container_only() -> None:
    document = manifest("PyTorchJob")
    pod = replicas(document)["Worker"]["template"]["spec"]
    pod["containers"].insert(0, {"name": "proxy", "image": "proxy"})
    first, second = containers(read(document))
    assert "ports" not in first
    assert second["ports"] == [{"name": "pytorchjob-port", "containerPort": 23456}]


def test_reading_does_not_change_the_document() -> None:
    document = manifest("PyTorchJob")
    read(document)
    assert document == manifest("PyTorchJob")


@pytest.mark.parametrize("spelling", ["worker", "WORKER", "wOrKeR"])
@pytest.mark.parametrize("kind", KINDS)
def test_replica_types_are_case_insensitive(kind: str, spelling: str) -> None:
    document = manifest(kind)
    replicas(document)[spelling] = replicas(document).pop("Worker")
    assert read(document) == read(manifest(kind))


def test_replica_types_are_ordered_by_precedence() -> None:
    document = manifest("TFJob", worker=1, ps=1, evaluator=1, CHIEF=1)
    assert list(read(document).replicas) == ["Chief", "Evaluator", "PS", "Worker"]


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        ({}, 3, 3),
        ({"minReplicas": 1}, 1, 1),
        ({"maxReplicas": 5}, 5, 5),
        ({"minReplicas": 1, "maxReplicas": 5}, 1, 5),
        ({"minReplicas": None, "maxReplicas": None}, 3, 3),
    ],
)
def test_elastic_bounds_default_to_each_other_or_to_the_workers(
    given: dict[str, Any], least: int, most: int
) -> None:
    document = manifest("PyTorchJob", Worker=3)
    document["spec"]["elasticPolicy"] = given
    assert read(document).elastic_policy == ElasticPolicy(min_replicas=least, max_replicas=most)


def test_legacy_clean_pod_policy_of_mpi_job_applies_unless_run_policy_sets_it() -> None:
    document = manifest("MPIJob")
    document["spec"]["cleanPodPolicy"] = "Running"
    assert read(document).run_policy.clean_pod_policy is CleanPodPolicy.RUNNING
    assert read(document).options == {}
    document["spec"]["runPolicy"] = {"cleanPodPolicy": "All"}
    assert read(document).run_policy.clean_pod_policy is CleanPodPolicy.ALL


def test_options_are_kept_without_defaults() -> None:
    document = manifest("MPIJob")
    document["spec"] |= {"slotsPerWorker": 2, "mainContainer": None}
    assert read(document).options == {"slotsPerWorker": 2}
    assert read(manifest("PyTorchJob")).options == {}
