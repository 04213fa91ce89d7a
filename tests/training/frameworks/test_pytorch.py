"""PyTorchJob, compared with the sources and tests of the training operator 1.9."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.training.frameworks.pytorch import FRAMEWORK
from danlu.training.types import ElasticPolicy, ReplicaId
from tests.training.frameworks.cases import FULL, OLD
from tests.training.frameworks.topology import (
    FakeTopology,
    findings,
    job_of,
    names,
    replica_of,
    template,
    values,
)


def test_variables_of_a_job_with_a_master_are_in_the_order_of_kubeflow() -> None:
    job = job_of(FRAMEWORK, {"Master": 1, "Worker": 1})
    assert names(FRAMEWORK, job, "worker-0") == [
        "PYTHONUNBUFFERED",
        "MASTER_PORT",
        "PET_MASTER_PORT",
        "MASTER_ADDR",
        "PET_MASTER_ADDR",
        "WORLD_SIZE",
        "RANK",
        "PET_NODE_RANK",
        "PET_NPROC_PER_NODE",
        "PET_NNODES",
    ]


def test_workers_rank_after_the_master() -> None:
    job = job_of(FRAMEWORK, {"Master": 1, "Worker": 2}, name="mnist")
    result = values(FRAMEWORK, job, "worker-1")
    assert result["MASTER_ADDR"] == result["PET_MASTER_ADDR"] == "mnist-master-0"
    assert result["MASTER_PORT"] == result["PET_MASTER_PORT"] == "23456"
    assert result["RANK"] == result["PET_NODE_RANK"] == "2"
    assert result["WORLD_SIZE"] == result["PET_NNODES"] == "3"
    assert values(FRAMEWORK, job, "master-0")["RANK"] == "0"


@pytest.mark.parametrize(
    ("processes", "world"), [("auto", "2"), ("gpu", "2"), ("4", "8"), (None, "2")]
)
def test_world_size_counts_processes_only_if_their_number_is_set(
    processes: str | None, world: str
) -> None:
    options = {} if processes is None else {"nprocPerNode": processes}
    job = job_of(FRAMEWORK, {"Master": 1, "Worker": 1}, options=options)
    result = values(FRAMEWORK, job, "worker-0")
    assert result["WORLD_SIZE"] == world
    assert result["PET_NPROC_PER_NODE"] == (processes or "auto")
    assert result["RANK"] == "1"


def test_elastic_variables_match_elastic_test_go() -> None:
    job = job_of(FRAMEWORK, {"Worker": 1}, elastic=FULL)
    assert values(FRAMEWORK, job, "worker-0") == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "auto",
        "PET_RDZV_ENDPOINT": "localhost:1234",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": "1:3",
        "PET_MAX_RESTARTS": "3",
        "PET_RDZV_ID": "rdzv-id",
        "PET_RDZV_CONF": "rdzv-conf-name=rdzv-conf-value,rdzv-conf-name-1=rdzv-conf-value-1",
    }
    assert names(FRAMEWORK, job, "worker-0")[2:6] == [
        "PET_RDZV_ENDPOINT",
        "PET_RDZV_BACKEND",
        "PET_NNODES",
        "PET_MAX_RESTARTS",
    ]


def test_elastic_rendezvous_defaults_to_worker_0() -> None:
    job = job_of(
        FRAMEWORK,
        {"Worker": 2},
        name="el",
        elastic=ElasticPolicy(min_replicas=1, max_replicas=2),
        pod=template(FRAMEWORK, port=2379),
    )
    assert values(FRAMEWORK, job, "worker-1")["PET_RDZV_ENDPOINT"] == "el-worker-0:2379"


def test_deprecated_nproc_per_node_of_the_elastic_policy_applies() -> None:
    result = values(FRAMEWORK, job_of(FRAMEWORK, {"Worker": 2}, elastic=OLD), "worker-0")
    assert result["PET_NPROC_PER_NODE"] == "4"
    assert result["PET_STANDALONE"] == ""
    assert "MASTER_ADDR" not in result


def test_worker_0_is_the_rendezvous_without_a_master() -> None:
    job = job_of(FRAMEWORK, {"Worker": 2}, name="mnist")
    assert names(FRAMEWORK, job, "worker-1")[:3] == [
        "PYTHONUNBUFFERED",
        "PET_NPROC_PER_NODE",
        "PET_NNODES",
    ]
    result = values(FRAMEWORK, job, "worker-1")
    assert result["MASTER_ADDR"] == result["PET_MASTER_ADDR"] == "mnist-worker-0"
    assert result["MASTER_PORT"] == result["PET_MASTER_PORT"] == "23456"
    assert result["RANK"] == result["PET_NODE_RANK"] == "1"
    assert result["WORLD_SIZE"] == "2"


def test_variables_of_the_manifest_are_kept_if_kubeflow_sets_none() -> None:
    own = template(FRAMEWORK, env={"MASTER_ADDR": "elsewhere", "WORLD_SIZE": "7"})
    without = names(FRAMEWORK, job_of(FRAMEWORK, {"Worker": 2}, pod=own), "worker-0")
    assert "MASTER_ADDR" not in without
    assert "WORLD_SIZE" not in without
    assert "RANK" in without
    with_master = job_of(FRAMEWORK, {"Master": 1, "Worker": 1}, pod=own)
    assert values(FRAMEWORK, with_master, "worker-0")["MASTER_ADDR"] == "j-master-0"


def test_leader_is_the_master_or_worker_0() -> None:
    with_master = job_of(FRAMEWORK, {"Worker": 2, "Master": 1})
    assert str(FRAMEWORK.leader(with_master)) == "master-0"
    assert str(FRAMEWORK.leader(job_of(FRAMEWORK, {"Worker": 2}))) == "worker-0"


def test_workers_wait_until_the_master_resolves() -> None:
    job = job_of(FRAMEWORK, {"Master": 1, "Worker": 1}, name="mnist")
    pod = {"spec": {"initContainers": [{"name": "mine"}], "containers": []}}
    cluster = FakeTopology(job, FRAMEWORK)
    result = FRAMEWORK.mutate_pod(job, replica_of("worker-0", FRAMEWORK), cluster, pod)
    assert result["spec"]["initContainers"] == [
        {"name": "mine"},
        {
            "name": "init-pytorch",
            "image": "alpine:3.10",
            "imagePullPolicy": "IfNotPresent",
            "command": [
                "sh",
                "-c",
                "err=1;for i in $(seq 100); do if nslookup mnist-master-0; then err=0 && break; "
                "fi;echo waiting for master; sleep 2; done; exit $err",
            ],
            "resources": {
                "limits": {"cpu": "100m", "memory": "20Mi"},
                "requests": {"cpu": "50m", "memory": "10Mi"},
            },
        },
    ]
    assert pod["spec"]["initContainers"] == [{"name": "mine"}], "the template was changed"


@pytest.mark.parametrize(
    ("replicas", "replica"), [({"Master": 1, "Worker": 1}, "master-0"), ({"Worker": 2}, "worker-1")]
)
def test_other_replicas_do_not_wait_for_the_master(replicas: dict[str, int], replica: str) -> None:
    job = job_of(FRAMEWORK, replicas)
    pod: dict[str, Any] = {"spec": {"containers": []}}
    id: ReplicaId = replica_of(replica, FRAMEWORK)
    assert FRAMEWORK.mutate_pod(job, id, FakeTopology(job, FRAMEWORK), pod) == pod


def test_valid_job_has_no_findings() -> None:
    assert findings(FRAMEWORK, job_of(FRAMEWORK, {"Master": 1, "Worker": 3})) == []
    assert findings(FRAMEWORK, job_of(FRAMEWORK, {"Worker": 1}, elastic=FULL)) == []


def test_invalid_replica_counts_are_findings() -> None:
    assert findings(FRAMEWORK, job_of(FRAMEWORK, {"Master": 2, "Worker": 0})) == [
        "spec.pytorchReplicaSpecs[Master].replicas: must be 1",
        "spec.pytorchReplicaSpecs[Worker].replicas: must be at least 1",
    ]


def test_invalid_elastic_policies_are_findings() -> None:
    policy = ElasticPolicy(
        min_replicas=4, max_replicas=2, n_proc_per_node=1, rdzv_backend="zookeeper"
    )
    job = job_of(FRAMEWORK, {"Master": 1}, elastic=policy, options={"nprocPerNode": "many"})
    assert findings(FRAMEWORK, job) == [
        "spec.elasticPolicy.minReplicas: 4 is more than maxReplicas, 2",
        "spec.elasticPolicy.nProcPerNode: cannot be combined with spec.nprocPerNode",
        "spec.elasticPolicy.rdzvBackend: cannot be 'zookeeper'",
        "spec.nprocPerNode: cannot be 'many'",
        "spec.pytorchReplicaSpecs[Worker]: is required with an elastic policy",
    ]
