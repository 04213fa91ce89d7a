"""Which replicas are recreated, when, and how often."""

from __future__ import annotations

import pytest

from danlu.training.types import (
    ConditionType,
    DeleteReplica,
    ReplicaPhase,
    RestartPolicy,
    RunPolicy,
)
from tests.training.job_simulation import JobSimulation, job

ALWAYS, ON_FAILURE, NEVER, EXIT_CODE = RestartPolicy
FAILED = ConditionType.FAILED


def two_workers(policy: RestartPolicy, limit: int | None = None) -> JobSimulation:
    return JobSimulation(
        job("JAXJob", policy, Worker=2, run=RunPolicy(backoff_limit=limit))
    ).start()


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [
        (NEVER, 1, False),
        (NEVER, 137, False),
        (ON_FAILURE, 1, True),
        (ON_FAILURE, 137, True),
        (ALWAYS, 1, True),
        (EXIT_CODE, 1, False),
        (EXIT_CODE, 127, False),
        (EXIT_CODE, 128, True),
        (EXIT_CODE, 143, True),
        (EXIT_CODE, 255, True),
    ],
)
def test_restart_policy_decides_which_exit_codes_are_retried(
    policy: RestartPolicy, code: int, again: bool
) -> None:
    stage = two_workers(policy)
    stage.end("worker-1", code)
    stage.settle()
    assert stage.state() == ("Restarting" if again else "Failed")
    assert stage.record("worker-1").restarts == (1 if again else 0)
    assert stage.record("worker-1").failed is not again


def test_unknown_exit_code_is_retried() -> None:
    """An evicted pod has no terminated container; Kubeflow then uses 48879."""
    stage = two_workers(EXIT_CODE)
    stage.end("worker-1", None, phase=ReplicaPhase.FAILED, reason="Evicted")
    stage.settle()
    assert stage.state() == "Restarting"


def test_failed_pod_with_exit_code_0_is_not_retried_by_exit_code() -> None:
    stage = two_workers(EXIT_CODE)
    stage.end("worker-1", 0, phase=ReplicaPhase.FAILED, reason="Error")
    stage.settle()
    assert stage.state() == "Failed"


def test_permanent_failure_by_exit_code_has_a_completion_time() -> None:
    """Kubeflow sets none for PyTorch, JAX, Paddle and XGBoost, and their TTL never fires."""
    stage = two_workers(EXIT_CODE)
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.status.completion_time == stage.now


def test_launcher_is_restarted_by_exit_code() -> None:
    """Kubeflow reports Restarting but never recreates it (#2044)."""
    stage = JobSimulation(job("MPIJob", EXIT_CODE, Launcher=1, Worker=1)).start()
    stage.end("launcher-0", 137)
    stage.settle()
    stage.wait(1)
    stage.settle()
    assert stage.names() == ["launcher-0", "worker-0"]
    stage.run("launcher-0")
    stage.settle()
    assert stage.state() == "Running"


def test_backoff_doubles_with_each_restart() -> None:
    stage = two_workers(ON_FAILURE)
    waits = []
    for _ in range(5):
        stage.end("worker-1", 1)
        decision = stage.settle()
        assert stage.names() == ["worker-0"]
        assert decision.requeue_after is not None
        waits.append(decision.requeue_after)
        stage.wait(decision.requeue_after)
        stage.settle()
        stage.run("worker-1")
        stage.settle()
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]


def test_backoff_ends_if_the_replica_exists_again() -> None:
    stage = two_workers(ON_FAILURE)
    stage.end("worker-1", 1)
    stage.settle()
    stage.add("worker-1")
    assert stage.settle().requeue_after is None
    assert stage.record("worker-1").retry_at is None


def test_attempts_are_numbered_per_replica() -> None:
    stage = two_workers(ON_FAILURE)
    for _ in range(2):
        stage.end("worker-1", 1)
        stage.settle()
        stage.wait(8)
        stage.settle()
    results = [action.attempt for action in stage.created if str(action.replica) == "worker-1"]
    assert results == [0, 1, 2]


def test_replica_is_recreated_only_after_the_old_one_is_gone() -> None:
    stage = two_workers(ON_FAILURE)
    stage.end("worker-1", 1)
    stage.write()
    stage.change("worker-1", deleting=True)
    stage.wait(8)
    assert not stage.settle().actions
    stage.vanish("worker-1")
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1"]


def test_lost_replica_is_recreated_under_every_restart_policy() -> None:
    for policy in RestartPolicy:
        stage = two_workers(policy)
        stage.vanish("worker-1")
        stage.settle()
        stage.wait(1)
        stage.settle()
        assert stage.names() == ["worker-0", "worker-1"]
        assert stage.record("worker-1").restarts == 1
        assert stage.record("worker-1").reason == "Lost"


def test_externally_deleted_replica_does_not_fail_the_job() -> None:
    """As on a drained node: Kubeflow fails or recreates, depending on the first event."""
    stage = two_workers(NEVER)
    stage.change("worker-1", deleting=True)
    stage.settle()
    assert stage.state() == "Restarting"
    stage.end("worker-1", 143)
    stage.settle()
    stage.vanish("worker-1")
    stage.settle()
    stage.wait(1)
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1"]
    assert stage.record("worker-1").restarts == 1


def test_terminating_replica_with_exit_code_0_is_not_completed() -> None:
    """It may have written a checkpoint and exited, so it must be recreated."""
    stage = two_workers(ON_FAILURE)
    stage.change("worker-1", deleting=True)
    stage.end("worker-1", 0)
    stage.settle()
    assert not stage.record("worker-1").completed


def test_terminating_replica_is_not_active() -> None:
    stage = two_workers(NEVER)
    stage.change("worker-1", deleting=True)
    stage.settle()
    workers = stage.status.replica_statuses[stage.framework.replica_types[0]]
    assert (workers.active, workers.failed) == (1, 1)


# -- a replica that succeeded, under Always


def test_always_restarts_a_succeeded_parameter_server() -> None:
    stage = JobSimulation(job("TFJob", ALWAYS, PS=1, Worker=2)).start()
    stage.end("ps-0", 0)
    stage.settle()
    assert stage.state() == "Running"
    assert stage.status.first_failure is None
    stage.wait(1)
    stage.settle()
    assert stage.names() == ["ps-0", "worker-0", "worker-1"]
    assert stage.record("ps-0").restarts == 1


def test_always_does_not_restart_a_deciding_worker_that_succeeded() -> None:
    stage = JobSimulation(job("JAXJob", ALWAYS, Worker=2)).start()
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.record("worker-0").completed
    stage.end("worker-1", 0)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_always_restarts_a_succeeded_worker_of_a_job_with_a_master() -> None:
    stage = JobSimulation(job("PyTorchJob", ALWAYS, Master=1, Worker=1)).start()
    stage.end("worker-0", 0)
    stage.settle()
    stage.wait(1)
    stage.settle()
    assert stage.names() == ["master-0", "worker-0"]


def test_on_failure_does_not_restart_a_succeeded_parameter_server() -> None:
    stage = JobSimulation(job("TFJob", ON_FAILURE, PS=1, Worker=2)).start()
    stage.end("ps-0", 0)
    stage.settle()
    stage.wait(8)
    stage.settle()
    assert stage.record("ps-0").completed
    assert [str(action.replica) for action in stage.created].count("ps-0") == 1


# -- the back-off limit


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_job_fails_after_the_backoff_limit(limit: int) -> None:
    stage = two_workers(ON_FAILURE, limit)
    for _ in range(limit):
        stage.end("worker-1", 1)
        stage.settle()
        stage.wait(8)
        stage.settle()
        stage.run("worker-1")
        stage.settle()
        assert stage.state() == "Running"
    stage.end("worker-1", 1)
    stage.settle()
    message = "Job n has failed because it has reached the specified backoff limit"
    assert stage.condition(FAILED).message == message
    assert stage.condition(FAILED).reason == "JAXJobFailed"
    assert stage.record("worker-1").restarts == limit
    assert stage.record("worker-1").failed


def test_restarts_by_exit_code_count_towards_the_backoff_limit() -> None:
    """Kubeflow recreates the pod with restart count 0 and never reaches the limit (#2045)."""
    stage = two_workers(EXIT_CODE, 1)
    for _ in range(2):
        stage.end("worker-1", 137)
        stage.settle()
        stage.wait(8)
        stage.settle()
    assert stage.state() == "Failed"


def test_backoff_limit_counts_restarts_of_all_replicas() -> None:
    stage = two_workers(ON_FAILURE, 1)
    stage.end("worker-0", 1)
    stage.end("worker-1", 1)
    stage.settle()
    assert stage.state() == "Failed"


def test_container_restarts_of_a_lost_replica_count_towards_the_backoff_limit() -> None:
    """Kubeflow counts restarts of running pods only."""
    stage = two_workers(ON_FAILURE, 3)
    stage.change("worker-1", restarts=2)
    stage.settle()
    stage.change("worker-1", restarts=3)
    stage.settle()
    assert stage.record("worker-1").restarts == 3
    assert stage.state() == "Running"
    stage.vanish("worker-1")
    stage.settle()
    assert stage.state() == "Failed"


def test_container_restarts_beyond_the_backoff_limit_set_the_first_failure() -> None:
    stage = two_workers(ON_FAILURE, 1)
    stage.change("worker-1", restarts=2, reason="CrashLoopBackOff")
    stage.settle()
    assert stage.state() == "Failed"
    failure = stage.status.first_failure
    assert failure is not None
    assert (str(failure.replica), failure.reason) == ("worker-1", "CrashLoopBackOff")


def test_externally_created_replica_counts_as_a_restart() -> None:
    stage = two_workers(ON_FAILURE, 1)
    stage.vanish("worker-1")
    stage.add("worker-1")
    stage.settle()
    assert stage.record("worker-1").restarts == 1
    assert stage.state() == "Running"


def test_restart_is_counted_once_while_the_old_replica_remains() -> None:
    stage = two_workers(ON_FAILURE, 1)
    stage.end("worker-1", 1)
    decisions = [stage.write() for _ in range(3)]  # no action is applied
    removals = [
        [action for action in decision.actions if isinstance(action, DeleteReplica)]
        for decision in decisions
    ]
    assert removals[0] == removals[1] == removals[2] != []
    assert stage.record("worker-1").restarts == 1
    assert stage.state() == "Restarting"


def test_success_takes_precedence_over_the_backoff_limit() -> None:
    """Kubeflow checks the limit first or, iterating a Go map, either."""
    stage = JobSimulation(
        job("PyTorchJob", ON_FAILURE, Master=1, Worker=1, run=RunPolicy(backoff_limit=0))
    ).start()
    stage.end("worker-0", 1)
    stage.end("master-0", 0)
    stage.settle()
    assert stage.state() == "Succeeded"
