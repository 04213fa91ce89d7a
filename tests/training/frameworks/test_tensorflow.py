"""TFJob, compared with the sources and tests of the training operator 1.9."""

from __future__ import annotations

import pytest

from danlu.training.framework import ReplicaCounts
from danlu.training.frameworks.tensorflow import FRAMEWORK
from danlu.training.types import ConditionType
from tests.training.frameworks.topology import (
    findings,
    job_of,
    render_added_variables,
    replica_of,
    tallies,
    template,
    values,
)

PLAIN = (
    '{"cluster":{"ps":["J-ps-0.NS.svc:2222"],"worker":["J-worker-0.NS.svc:2222"]},'
    '"task":{"type":"worker","index":0},"environment":"cloud"}'
)
# pod_test.go, "should generate desired cluster spec".
IN_DOMAIN = (
    '{"cluster":{"ps":["test-tfjob-ps-0.ns2.svc.tf.training.org:2222"],'
    '"worker":["test-tfjob-worker-0.ns2.svc.tf.training.org:2222"]},'
    '"task":{"type":"worker","index":0},"environment":"cloud"}'
)
WITH_EVALUATOR = (
    '{"cluster":{"evaluator":["test-tfjob-evaluator-0.ns3.svc.tf.training.io:2222"],'
    '"ps":["test-tfjob-ps-0.ns3.svc.tf.training.io:2222"],'
    '"worker":["test-tfjob-worker-0.ns3.svc.tf.training.io:2222"]},'
    '"task":{"type":"worker","index":0},"environment":"cloud"}'
)
SPARSE = (
    '{"cluster":{"worker":{"1":"J-worker-1.NS.svc:2222"},'
    '"ps":["J-ps-0.NS.svc:2222","J-ps-1.NS.svc:2222"]},"task":{"type":"worker","index":1}}'
)
DYNAMIC = {"enableDynamicWorker": True}


@pytest.mark.parametrize(
    ("replicas", "name", "namespace", "domain", "expected"),
    [
        ({"Worker": 1, "PS": 1}, "J", "NS", "", PLAIN),
        ({"Worker": 1, "PS": 1}, "test-tfjob", "ns2", "tf.training.org", IN_DOMAIN),
        (
            {"Worker": 1, "PS": 1, "Evaluator": 1},
            "test-tfjob",
            "ns3",
            "tf.training.io",
            WITH_EVALUATOR,
        ),
    ],
)
def test_tf_config_is_byte_identical_to_kubeflow(
    replicas: dict[str, int], name: str, namespace: str, domain: str, expected: str
) -> None:
    job = job_of(FRAMEWORK, replicas, name=name, namespace=namespace)
    assert values(FRAMEWORK, job, "worker-0", domain=domain) == {"TF_CONFIG": expected}


@pytest.mark.parametrize("replicas", [{"Worker": 1}, {"Worker": 0, "PS": 1}, {"Chief": 1}])
def test_single_replica_gets_no_tf_config(replicas: dict[str, int]) -> None:
    job = job_of(FRAMEWORK, replicas)
    assert set(map(str, render_added_variables(FRAMEWORK, job).values())) == {"{'tensorflow': []}"}


def test_only_the_main_container_gets_tf_config() -> None:
    job = job_of(FRAMEWORK, {"Worker": 2}, pod=template(FRAMEWORK, sidecar="proxy"))
    assert list(render_added_variables(FRAMEWORK, job)["worker-1"]) == ["tensorflow"]


@pytest.mark.parametrize(
    ("replica", "expected"),
    [
        ("worker-1", SPARSE),
        (
            "ps-1",
            '{"cluster":{"worker":{},"ps":["J-ps-1.NS.svc:2222"]},"task":{"type":"ps","index":1}}',
        ),
        ("chief-0", '{"cluster":{"worker":{},"ps":[]},"task":{"type":"chief","index":0}}'),
        ("evaluator-0", '{"cluster":{"worker":{},"ps":[]},"task":{"type":"evaluator","index":0}}'),
    ],
)
def test_dynamic_workers_get_a_sparse_tf_config(replica: str, expected: str) -> None:
    replicas = {"Chief": 1, "Evaluator": 1, "PS": 2, "Worker": 2}
    job = job_of(FRAMEWORK, replicas, name="J", namespace="NS", options=DYNAMIC)
    assert values(FRAMEWORK, job, replica) == {"TF_CONFIG": expected}


def test_dynamic_worker_without_servers_gets_null_servers() -> None:
    job = job_of(FRAMEWORK, {"Worker": 2}, name="J", namespace="NS", options=DYNAMIC)
    assert values(FRAMEWORK, job, "worker-0")["TF_CONFIG"] == (
        '{"cluster":{"worker":{"0":"J-worker-0.NS.svc:2222"},"ps":null},'
        '"task":{"type":"worker","index":0}}'
    )


def test_each_replica_type_has_its_own_port() -> None:
    job = job_of(FRAMEWORK, {"PS": 1, "Worker": 1}, pod=template(FRAMEWORK, port=3333))
    assert "j-ps-0.ns.svc:3333" in values(FRAMEWORK, job, "worker-0")["TF_CONFIG"]


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ({"Chief": 1, "PS": 1, "Worker": 1}, "chief-0"),
        ({"Worker": 1, "Master": 1}, "master-0"),
        ({"PS": 1, "Worker": 2}, "worker-0"),
    ],
)
def test_leader_is_the_chief_the_master_or_worker_0(
    replicas: dict[str, int], expected: str
) -> None:
    assert FRAMEWORK.leader(job_of(FRAMEWORK, replicas)) == replica_of(expected, FRAMEWORK)


def test_dynamic_worker_failure_is_tolerated_while_another_runs() -> None:
    job = job_of(FRAMEWORK, {"Worker": 3}, options=DYNAMIC)
    one_left = tallies(Worker=ReplicaCounts(expected=3, active=1, failed=2))
    verdict = FRAMEWORK.evaluate(job, one_left)
    assert verdict
    assert verdict.condition == ConditionType.RUNNING
    still_to_come = tallies(Worker=ReplicaCounts(expected=3, failed=2))
    assert FRAMEWORK.evaluate(job, still_to_come) is None
    nobody_left = tallies(Worker=ReplicaCounts(expected=3, failed=3))
    verdict = FRAMEWORK.evaluate(job, nobody_left)
    assert verdict
    assert verdict.condition == ConditionType.FAILED


def test_dynamic_worker_failures_are_tolerated_with_a_chief() -> None:
    job = job_of(FRAMEWORK, {"Chief": 1, "Worker": 1}, options=DYNAMIC)
    state = tallies(
        Chief=ReplicaCounts(expected=1, active=1), Worker=ReplicaCounts(expected=1, failed=1)
    )
    verdict = FRAMEWORK.evaluate(job, state)
    assert verdict
    assert verdict.condition == ConditionType.RUNNING


def test_server_failure_of_a_dynamic_job_is_not_tolerated() -> None:
    job = job_of(FRAMEWORK, {"PS": 1, "Worker": 1}, options=DYNAMIC)
    state = tallies(
        PS=ReplicaCounts(expected=1, failed=1), Worker=ReplicaCounts(expected=1, active=1)
    )
    verdict = FRAMEWORK.evaluate(job, state)
    assert verdict
    assert (verdict.condition, verdict.replica_type) == (ConditionType.FAILED, "PS")


def test_valid_jobs_have_no_findings() -> None:
    for replicas in ({"Chief": 1, "PS": 1, "Worker": 0}, {"Worker": 3}, {"Master": 1}):
        assert findings(FRAMEWORK, job_of(FRAMEWORK, replicas)) == []
    assert findings(FRAMEWORK, job_of(FRAMEWORK, {"Worker": 1}, success="AllWorkers")) == []


def test_invalid_jobs_have_findings() -> None:
    job = job_of(
        FRAMEWORK,
        {"Chief": 2, "Master": 1},
        success="SomeWorkers",
        options={"enableDynamicWorker": "yes"},
    )
    assert findings(FRAMEWORK, job) == [
        "spec.enableDynamicWorker: cannot be 'yes'",
        "spec.successPolicy: cannot be 'SomeWorkers'",
        "spec.tfReplicaSpecs[Chief].replicas: must be 1",
        "spec.tfReplicaSpecs[Master]: cannot be combined with Chief",
    ]


def test_jobs_that_never_finish_have_findings() -> None:
    assert findings(FRAMEWORK, job_of(FRAMEWORK, {"PS": 1})) == [
        "spec.tfReplicaSpecs: has no replica type that can end the job"
    ]
    assert findings(FRAMEWORK, job_of(FRAMEWORK, {"PS": 1, "Worker": 0})) == [
        "spec.tfReplicaSpecs[Worker].replicas: must be at least 1"
    ]
