"""Which replicas are made again, when, and how often."""

from __future__ import annotations

import pytest

from danlu.training.types import ConditionType, DeleteReplica, Phase, RestartPolicy, RunPolicy
from tests.training.stage import Stage, job

ALWAYS, ON_FAILURE, NEVER, EXIT_CODE = RestartPolicy
FAILED = ConditionType.FAILED


def two_workers(policy: RestartPolicy, limit: int | None = None) -> Stage:
    return Stage(job("JAXJob", policy, Worker=2, run=RunPolicy(backoff_limit=limit))).start()


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
def test_the_policy_says_which_exit_codes_are_tried_again(
    policy: RestartPolicy, code: int, again: bool
) -> None:
    stage = two_workers(policy)
    stage.end("worker-1", code)
    stage.settle()
    assert stage.state() == ("Restarting" if again else "Failed")
    assert stage.record("worker-1").restarts == (1 if again else 0)
    assert stage.record("worker-1").failed is not again


def test_a_code_that_nobody_knows_is_tried_again() -> None:
    """An evicted pod has no terminated container; Kubeflow takes 48879 then."""
    stage = two_workers(EXIT_CODE)
    stage.end("worker-1", None, phase=Phase.FAILED, reason="Evicted")
    stage.settle()
    assert stage.state() == "Restarting"


def test_a_failed_pod_whose_program_ended_well_is_not_tried_again_by_exit_code() -> None:
    stage = two_workers(EXIT_CODE)
    stage.end("worker-1", 0, phase=Phase.FAILED, reason="Error")
    stage.settle()
    assert stage.state() == "Failed"


def test_permanent_failure_by_exit_code_has_a_completion_time() -> None:
    """Kubeflow sets none for PyTorch, JAX, Paddle and XGBoost, and their TTL never fires."""
    stage = two_workers(EXIT_CODE)
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.status.completion_time == stage.now


def test_exit_code_of_the_launcher_restarts_it() -> None:
    """Kubeflow says Restarting and never makes it again (#2044)."""
    stage = Stage(job("MPIJob", EXIT_CODE, Launcher=1, Worker=1)).start()
    stage.end("launcher-0", 137)
    stage.settle()
    stage.wait(1)
    stage.settle()
    assert stage.names() == ["launcher-0", "worker-0"]
    stage.run("launcher-0")
    stage.settle()
    assert stage.state() == "Running"


def test_a_replica_waits_twice_as_long_each_time() -> None:
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


def test_a_replica_that_is_back_waits_for_nothing() -> None:
    stage = two_workers(ON_FAILURE)
    stage.end("worker-1", 1)
    stage.settle()
    stage.add("worker-1")
    assert stage.settle().requeue_after is None
    assert stage.record("worker-1").retry_at is None


def test_attempts_have_numbers_of_their_own() -> None:
    stage = two_workers(ON_FAILURE)
    for _ in range(2):
        stage.end("worker-1", 1)
        stage.settle()
        stage.wait(8)
        stage.settle()
    made = [one.attempt for one in stage.made if str(one.replica) == "worker-1"]
    assert made == [0, 1, 2]


def test_nothing_is_made_before_what_was_there_is_gone() -> None:
    stage = two_workers(ON_FAILURE)
    stage.end("worker-1", 1)
    stage.write()
    stage.change("worker-1", deleting=True)
    stage.wait(8)
    assert not stage.settle().actions
    stage.vanish("worker-1")
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1"]


def test_a_lost_replica_is_made_again_under_every_policy() -> None:
    for policy in RestartPolicy:
        stage = two_workers(policy)
        stage.vanish("worker-1")
        stage.settle()
        stage.wait(1)
        stage.settle()
        assert stage.names() == ["worker-0", "worker-1"]
        assert stage.record("worker-1").restarts == 1
        assert stage.record("worker-1").reason == "Lost"


def test_an_end_that_others_ordered_is_no_failure_of_the_program() -> None:
    """A drained machine: Kubeflow fails or re-creates, by which event it sees first."""
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


def test_a_program_that_was_told_to_end_is_not_completed_by_ending_well() -> None:
    """It wrote its checkpoint and went: it has to come back."""
    stage = two_workers(ON_FAILURE)
    stage.change("worker-1", deleting=True)
    stage.end("worker-1", 0)
    stage.settle()
    assert not stage.record("worker-1").completed


def test_a_replica_being_ended_is_not_active() -> None:
    stage = two_workers(NEVER)
    stage.change("worker-1", deleting=True)
    stage.settle()
    workers = stage.status.replica_statuses[stage.framework.types[0]]
    assert (workers.active, workers.failed) == (1, 1)


# -- a replica that succeeded, under Always


def test_always_restarts_a_parameter_server_that_ended_well() -> None:
    stage = Stage(job("TFJob", ALWAYS, PS=1, Worker=2)).start()
    stage.end("ps-0", 0)
    stage.settle()
    assert stage.state() == "Running"
    assert stage.status.first_failure is None
    stage.wait(1)
    stage.settle()
    assert stage.names() == ["ps-0", "worker-0", "worker-1"]
    assert stage.record("ps-0").restarts == 1


def test_always_lets_a_worker_succeed_whose_success_ends_the_job() -> None:
    stage = Stage(job("JAXJob", ALWAYS, Worker=2)).start()
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.record("worker-0").completed
    stage.end("worker-1", 0)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_always_restarts_a_worker_beside_a_master() -> None:
    stage = Stage(job("PyTorchJob", ALWAYS, Master=1, Worker=1)).start()
    stage.end("worker-0", 0)
    stage.settle()
    stage.wait(1)
    stage.settle()
    assert stage.names() == ["master-0", "worker-0"]


def test_on_failure_does_not_restart_a_parameter_server_that_ended_well() -> None:
    stage = Stage(job("TFJob", ON_FAILURE, PS=1, Worker=2)).start()
    stage.end("ps-0", 0)
    stage.settle()
    stage.wait(8)
    stage.settle()
    assert stage.record("ps-0").completed
    assert [str(one.replica) for one in stage.made].count("ps-0") == 1


# -- the back-off limit


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_job_makes_as_many_restarts_as_its_limit_and_fails_at_the_next(limit: int) -> None:
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


def test_restarts_by_exit_code_count_towards_the_limit() -> None:
    """Kubeflow makes the pod anew, whose restart count is 0 then, and never reaches it (#2045)."""
    stage = two_workers(EXIT_CODE, 1)
    for _ in range(2):
        stage.end("worker-1", 137)
        stage.settle()
        stage.wait(8)
        stage.settle()
    assert stage.state() == "Failed"


def test_restarts_of_all_replicas_count_together() -> None:
    stage = two_workers(ON_FAILURE, 1)
    stage.end("worker-0", 1)
    stage.end("worker-1", 1)
    stage.settle()
    assert stage.state() == "Failed"


def test_restarts_in_place_count_even_when_the_attempt_is_gone() -> None:
    """Kubeflow sums up running pods only."""
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


def test_restarts_in_place_beyond_the_limit_fail_the_job_and_name_who_it_was() -> None:
    stage = two_workers(ON_FAILURE, 1)
    stage.change("worker-1", restarts=2, reason="CrashLoopBackOff")
    stage.settle()
    assert stage.state() == "Failed"
    failure = stage.status.first_failure
    assert failure is not None
    assert (str(failure.replica), failure.reason) == ("worker-1", "CrashLoopBackOff")


def test_an_attempt_made_by_others_counts_as_a_restart() -> None:
    stage = two_workers(ON_FAILURE, 1)
    stage.vanish("worker-1")
    stage.add("worker-1")
    stage.settle()
    assert stage.record("worker-1").restarts == 1
    assert stage.state() == "Running"


def test_a_restart_is_counted_once_however_long_its_remains_are_seen() -> None:
    stage = two_workers(ON_FAILURE, 1)
    stage.end("worker-1", 1)
    decisions = [stage.write() for _ in range(3)]  # and nobody removes anything
    removals = [
        [one for one in each.actions if isinstance(one, DeleteReplica)] for each in decisions
    ]
    assert removals[0] == removals[1] == removals[2] != []
    assert stage.record("worker-1").restarts == 1
    assert stage.state() == "Restarting"


def test_a_job_that_succeeds_needs_no_restart() -> None:
    """Kubeflow looks at the limit first; with a Go map, at either."""
    stage = Stage(
        job("PyTorchJob", ON_FAILURE, Master=1, Worker=1, run=RunPolicy(backoff_limit=0))
    ).start()
    stage.end("worker-0", 1)
    stage.end("master-0", 0)
    stage.settle()
    assert stage.state() == "Succeeded"
