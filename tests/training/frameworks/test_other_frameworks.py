"""JAXJob, XGBoostJob, PaddleJob and MXJob, compared with the operator's sources and tests."""

from __future__ import annotations

import json

import pytest

from danlu.training.framework import Framework, ReplicaCounts
from danlu.training.frameworks import jax, mxnet, paddle, xgboost
from danlu.training.types import ConditionType, ElasticPolicy, Job, ReplicaType
from tests.training.frameworks.topology import (
    FakeTopology,
    findings,
    job_of,
    names,
    replica_of,
    tallies,
    template,
    values,
    variables,
)

OWN_ADDRESS = "<status.podIP>"


def first(framework: Framework, job: Job, replica: str, number: int) -> list[tuple[str, str]]:
    """Return the first variables of a replica, those that Kubeflow sets."""
    return list(values(framework, job, replica).items())[:number]


# -- JAX ------------------------------------------------------------------------------------------


def test_jax_variables_match_envvar_test_go() -> None:
    job = job_of(
        jax.FRAMEWORK, {"Worker": 1}, name="test-jaxjob", pod=template(jax.FRAMEWORK, port=1234)
    )
    assert first(jax.FRAMEWORK, job, "worker-0", 5) == [
        ("PYTHONUNBUFFERED", "1"),
        ("COORDINATOR_PORT", "1234"),
        ("COORDINATOR_ADDRESS", "test-jaxjob-worker-0"),
        ("NUM_PROCESSES", "1"),
        ("PROCESS_ID", "0"),
    ]


def test_jax_variables_of_kubeflow_trainer_v2_are_set() -> None:
    result = values(jax.FRAMEWORK, job_of(jax.FRAMEWORK, {"Worker": 3}), "worker-2")
    assert list(result.items())[5:] == [
        ("JAX_COORDINATOR_ADDRESS", "j-worker-0:6666"),
        ("JAX_NUM_PROCESSES", "3"),
        ("JAX_PROCESS_ID", "2"),
    ]


def test_jax_variables_of_the_manifest_are_kept() -> None:
    own = template(jax.FRAMEWORK, env={"JAX_COORDINATOR_ADDRESS": "elsewhere:1"})
    job = job_of(jax.FRAMEWORK, {"Worker": 2}, pod=own)
    assert "JAX_COORDINATOR_ADDRESS" not in names(jax.FRAMEWORK, job, "worker-0")


def test_jax_needs_a_worker() -> None:
    assert jax.FRAMEWORK.required_types == ("Worker",)
    assert findings(jax.FRAMEWORK, job_of(jax.FRAMEWORK, {"Worker": 0})) == [
        "spec.jaxReplicaSpecs[Worker].replicas: must be at least 1"
    ]


# -- XGBoost --------------------------------------------------------------------------------------


def test_xgboost_variables_match_kubeflow() -> None:
    job = job_of(xgboost.FRAMEWORK, {"Master": 1, "Worker": 2}, name="J")
    assert first(xgboost.FRAMEWORK, job, "worker-1", 7) == [
        ("MASTER_PORT", "9999"),
        ("MASTER_ADDR", "J-master-0"),
        ("WORLD_SIZE", "3"),
        ("RANK", "2"),
        ("PYTHONUNBUFFERED", "1"),
        ("WORKER_PORT", "9999"),
        ("WORKER_ADDRS", "J-worker-0,J-worker-1"),
    ]


def test_xgboost_master_without_workers_gets_no_worker_list() -> None:
    job = job_of(xgboost.FRAMEWORK, {"Master": 1})
    assert names(xgboost.FRAMEWORK, job, "master-0")[:5] == [
        "MASTER_PORT",
        "MASTER_ADDR",
        "WORLD_SIZE",
        "RANK",
        "PYTHONUNBUFFERED",
    ]
    assert "WORKER_ADDRS" not in names(xgboost.FRAMEWORK, job, "master-0")


def test_xgboost_tracker_runs_on_the_master() -> None:
    job = job_of(xgboost.FRAMEWORK, {"Master": 1, "Worker": 2})
    assert list(values(xgboost.FRAMEWORK, job, "worker-0").items())[7:] == [
        ("DMLC_TRACKER_URI", "j-master-0"),
        ("DMLC_TRACKER_PORT", "9999"),
        ("DMLC_NUM_WORKER", "3"),
        ("DMLC_TASK_ID", "1"),
    ]


def test_xgboost_needs_one_master() -> None:
    assert xgboost.FRAMEWORK.required_types == ("Master",)
    assert findings(xgboost.FRAMEWORK, job_of(xgboost.FRAMEWORK, {"Master": 2})) == [
        "spec.xgbReplicaSpecs[Master].replicas: must be 1"
    ]


# -- Paddle ---------------------------------------------------------------------------------------


def test_paddle_worker_0_is_the_rendezvous() -> None:
    job = job_of(paddle.FRAMEWORK, {"Worker": 2}, name="J")
    assert first(paddle.FRAMEWORK, job, "worker-0", 5) == [
        ("PYTHONUNBUFFERED", "1"),
        ("PADDLE_JOB_ID", "J"),
        ("PADDLE_NNODES", "2"),
        ("POD_IP_DUMMY", OWN_ADDRESS),
        ("PADDLE_MASTER", "$(POD_IP_DUMMY):36543"),
    ]
    assert first(paddle.FRAMEWORK, job, "worker-1", 4)[3] == ("PADDLE_MASTER", "J-worker-0:36543")


def test_paddle_master_0_is_the_rendezvous() -> None:
    job = job_of(paddle.FRAMEWORK, {"Master": 2, "Worker": 1}, name="J")
    assert first(paddle.FRAMEWORK, job, "master-0", 6)[3:] == [
        ("POD_IP_DUMMY", OWN_ADDRESS),
        ("PADDLE_MASTER", "$(POD_IP_DUMMY):36543"),
        ("PADDLE_SERVER_NUM", "1"),
    ]
    assert first(paddle.FRAMEWORK, job, "master-1", 5)[3:] == [
        ("PADDLE_MASTER", "J-master-0:36543"),
        ("PADDLE_SERVER_NUM", "1"),
    ]
    assert first(paddle.FRAMEWORK, job, "worker-0", 5)[3:] == [
        ("PADDLE_MASTER", "J-master-0:36543"),
        ("PADDLE_TRAINER_NUM", "1"),
    ]


def test_paddle_launcher_gets_address_directory_and_rank() -> None:
    job = job_of(paddle.FRAMEWORK, {"Worker": 2})
    assert list(values(paddle.FRAMEWORK, job, "worker-1").items())[4:] == [
        ("POD_IP", OWN_ADDRESS),
        ("PADDLE_LOG_DIR", "log/worker-1"),
        ("PADDLE_RANK", "1"),
    ]
    served = job_of(paddle.FRAMEWORK, {"Master": 1, "Worker": 2})
    assert "PADDLE_RANK" not in names(paddle.FRAMEWORK, served, "worker-1")


@pytest.mark.parametrize(
    ("command", "launched"),
    [
        ("python train.py --epochs 3", "python -m paddle.distributed.launch train.py --epochs 3"),
        ("/env/bin/python a.py", "/env/bin/python -m paddle.distributed.launch a.py"),
        ("python -m mine", "python -m paddle.distributed.launch python -m mine"),
        ("python -m paddle.distributed.launch a.py", "python -m paddle.distributed.launch a.py"),
        ("bash train.sh", "bash train.sh"),
        ("./train", "./train"),
        ("", ""),
    ],
)
def test_paddle_launcher_starts_scripts(command: str, launched: str) -> None:
    job = job_of(paddle.FRAMEWORK, {"Worker": 2})
    worker = ReplicaType("Worker")
    assert " ".join(paddle.FRAMEWORK.wrap_command(job, worker, command.split())) == launched


def test_variables_follow_the_variables_they_reference() -> None:
    job = job_of(paddle.FRAMEWORK, {"Worker": 1})
    results = [name for name, _ in variables(paddle.FRAMEWORK, job, "worker-0")]
    assert results.index("POD_IP_DUMMY") < results.index("PADDLE_MASTER")


def test_invalid_paddle_jobs_have_findings() -> None:
    policy = ElasticPolicy(min_replicas=3, max_replicas=1)
    job = job_of(paddle.FRAMEWORK, {"Worker": 0}, elastic=policy)
    assert findings(paddle.FRAMEWORK, job) == [
        "spec.elasticPolicy.minReplicas: 3 is more than maxReplicas, 1",
        "spec.paddleReplicaSpecs[Worker].replicas: must be at least 1",
    ]


# -- MXNet ----------------------------------------------------------------------------------------


def test_mxnet_variables_match_kubeflow() -> None:
    job = job_of(mxnet.FRAMEWORK, {"Scheduler": 1, "Server": 1, "Worker": 2}, name="J")
    config = (
        '{"cluster":{"scheduler":[{"url":"J-scheduler-0","port":9091}],'
        '"server":[{"url":"J-server-0","port":9091}],'
        '"worker":[{"url":"J-worker-0","port":9091},{"url":"J-worker-1","port":9091}]},'
        '"labels":{"scheduler":"","server":"","worker":""},'
        '"task":{"type":"worker","index":1}}'
    )
    assert first(mxnet.FRAMEWORK, job, "worker-1", 8) == [
        ("MX_CONFIG", config),
        ("DMLC_PS_ROOT_PORT", "9091"),
        ("DMLC_PS_ROOT_URI", "J-scheduler-0"),
        ("DMLC_NUM_SERVER", "1"),
        ("DMLC_NUM_WORKER", "2"),
        ("DMLC_ROLE", "worker"),
        ("DMLC_USE_KUBERNETES", "1"),
        ("DMLC_WORKER_ID", "1"),
    ]


def test_only_mxnet_workers_have_a_worker_id() -> None:
    job = job_of(mxnet.FRAMEWORK, {"Scheduler": 1, "Server": 1, "Worker": 1})
    for replica in ("scheduler-0", "server-0"):
        assert "DMLC_WORKER_ID" not in names(mxnet.FRAMEWORK, job, replica)


def test_mxnet_root_is_empty_without_a_scheduler() -> None:
    result = values(mxnet.FRAMEWORK, job_of(mxnet.FRAMEWORK, {"Worker": 1}), "worker-0")
    assert (result["DMLC_PS_ROOT_PORT"], result["DMLC_PS_ROOT_URI"]) == ("0", "")


def test_mxnet_tuner_key_is_formatted_as_in_go() -> None:
    own = template(mxnet.FRAMEWORK, annotations={"tuner-server-key": "a<b>&c — d"})
    job = job_of(mxnet.FRAMEWORK, {"Tuner": 1}, pod=own)
    config = values(mxnet.FRAMEWORK, job, "tuner-0")["MX_CONFIG"]
    assert '"labels":{"tuner":"a\\u003cb\\u003e\\u0026c — d"}' in config
    assert json.loads(config)["labels"] == {"tuner": "a<b>&c — d"}


def test_mxnet_servers_have_the_master_role() -> None:
    job = job_of(mxnet.FRAMEWORK, {"Scheduler": 1, "Server": 1, "Worker": 1})
    role = "training.kubeflow.org/job-role"
    pod = {"metadata": {"labels": {role: "master", "mine": "1"}}}
    cluster = FakeTopology(job, mxnet.FRAMEWORK)

    def labels(replica: str) -> object:
        id = replica_of(replica, mxnet.FRAMEWORK)
        return mxnet.FRAMEWORK.mutate_pod(job, id, cluster, pod)["metadata"]["labels"]

    assert labels("server-0") == {"mine": "1", role: "master"}
    assert labels("worker-0") == {"mine": "1"}


def test_mxnet_tuning_ends_with_the_tuner() -> None:
    job = job_of(mxnet.FRAMEWORK, {"TunerTracker": 1, "TunerServer": 1, "Tuner": 1})
    state = tallies(
        TunerTracker=ReplicaCounts(expected=1, active=1),
        TunerServer=ReplicaCounts(expected=1, active=1),
        Tuner=ReplicaCounts(expected=1, succeeded=1, first_succeeded=True),
    )
    verdict = mxnet.FRAMEWORK.evaluate(job, state)
    assert verdict
    assert (verdict.condition, verdict.replica_type) == (ConditionType.SUCCEEDED, "Tuner")


def test_invalid_mxnet_jobs_have_findings() -> None:
    job = job_of(mxnet.FRAMEWORK, {"Server": 1, "Worker": 0}, options={"jobMode": "MXPlay"})
    assert findings(mxnet.FRAMEWORK, job) == [
        "spec.jobMode: cannot be 'MXPlay'",
        "spec.mxReplicaSpecs[Scheduler]: is required if there is a Server",
        "spec.mxReplicaSpecs[Worker].replicas: must be at least 1",
    ]


@pytest.mark.parametrize(
    "replicas",
    [{"Scheduler": 1, "Server": 2, "Worker": 2}, {"Worker": 1}, {"TunerTracker": 1, "Tuner": 1}],
)
def test_valid_mxnet_jobs_have_no_findings(replicas: dict[str, int]) -> None:
    assert findings(mxnet.FRAMEWORK, job_of(mxnet.FRAMEWORK, replicas)) == []
