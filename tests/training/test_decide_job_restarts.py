"""Jobs whose replicas are all recreated together if one fails."""

from __future__ import annotations

import msgspec
import pytest

from danlu.training.rendering import render_pod
from danlu.training.topology import ServiceTopology
from danlu.training.types import (
    ConditionType,
    CreateReplica,
    DeleteReplica,
    JobRestartPolicy,
    RestartPolicy,
)
from tests.training.job_simulation import JobSimulation, job, replica

ALWAYS, ON_FAILURE, NEVER, EXIT_CODE = RestartPolicy
FAILED, RESTARTING = ConditionType.FAILED, ConditionType.RESTARTING


def three_workers(
    policy: RestartPolicy = ON_FAILURE, *, max_restarts: int | None = None
) -> JobSimulation:
    together = JobRestartPolicy(max_restarts)
    return JobSimulation(job("JAXJob", policy, Worker=3, together=together)).start()


def next_round(stage: JobSimulation) -> None:
    """Let the back-off pass, and start all replicas."""
    seconds = stage.settle().requeue_after
    assert seconds is not None
    stage.wait(seconds)
    stage.start()


def created_attempts(stage: JobSimulation) -> list[tuple[str, int]]:
    return sorted((str(action.replica), action.attempt) for action in stage.created)


def test_one_failure_recreates_all_replicas() -> None:
    stage = three_workers()
    stage.end("worker-1", 1)
    stage.settle()
    assert stage.names() == []
    assert stage.state() == "Restarting"
    next_round(stage)
    names = ["worker-0", "worker-1", "worker-2"]
    assert stage.names() == names
    assert created_attempts(stage) == [(name, number) for name in names for number in (0, 1)]
    assert stage.state() == "Running"


def test_failures_at_the_same_time_are_one_restart() -> None:
    stage = three_workers(max_restarts=1)
    stage.end("worker-0", 1)
    stage.end("worker-2", 137)
    next_round(stage)
    assert stage.status.restarts == 1
    assert [stage.record(name).restarts for name in stage.names()] == [0, 0, 0]
    assert stage.state() == "Running"


def test_failures_of_the_replicas_that_are_stopped_are_not_counted() -> None:
    """They often fail because their peer is gone, before they are stopped."""
    stage = three_workers(max_restarts=1)
    stage.end("worker-1", 1)
    stage.write()
    stage.end("worker-0", 1)
    stage.end("worker-2", 1)
    stage.settle()
    assert stage.status.restarts == 1
    assert stage.state() == "Restarting"


def test_no_replica_is_created_before_the_last_of_the_round_is_gone() -> None:
    """A new worker must not find a coordinator that is about to end."""
    stage = three_workers()
    stage.end("worker-1", 1)
    stage.write()
    stage.vanish("worker-0", "worker-1")
    stage.change("worker-2", deleting=True)
    stage.wait(8)
    stage.settle()
    assert stage.names() == ["worker-2"]
    stage.vanish("worker-2")
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1", "worker-2"]


def test_replica_that_succeeded_is_recreated_too() -> None:
    stage = three_workers()
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.record("worker-0").completed
    stage.vanish("worker-0")
    stage.end("worker-1", 1)
    next_round(stage)
    assert stage.names() == ["worker-0", "worker-1", "worker-2"]
    assert not stage.record("worker-0").completed


def test_lost_replica_restarts_the_job() -> None:
    stage = three_workers(NEVER)
    stage.vanish("worker-2")
    stage.settle()
    assert stage.names() == []
    assert stage.status.restarts == 1


def test_failed_job_restart_is_decided_again_after_a_crash() -> None:
    stage = three_workers(max_restarts=1)
    stage.end("worker-1", 1)
    decisions = [stage.write() for _ in range(3)]  # no action is applied
    deletions = [
        {action for action in decision.actions if isinstance(action, DeleteReplica)}
        for decision in decisions
    ]
    assert deletions[0] == deletions[1] == deletions[2]
    assert len(deletions[0]) == 3
    assert decisions[0].status == decisions[2].status
    assert stage.status.restarts == 1


def test_attempts_that_start_late_join_the_same_round() -> None:
    stage = three_workers()
    stage.end("worker-1", 1)
    stage.settle()
    stage.wait(1)
    creations = [action for action in stage.write().actions if isinstance(action, CreateReplica)]
    stage.apply_action(creations[0])  # then the driver crashes
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1", "worker-2"]
    assert stage.status.restarts == 1


def test_backoff_doubles_with_each_restart_of_the_job() -> None:
    stage = three_workers()
    waits = []
    for name in ("worker-0", "worker-1", "worker-2", "worker-0", "worker-1"):
        stage.end(name, 1)
        waits.append(stage.settle().requeue_after)
        next_round(stage)
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_job_fails_after_its_maximum_of_restarts(limit: int) -> None:
    stage = three_workers(max_restarts=limit)
    for _ in range(limit):
        stage.end("worker-1", 1)
        next_round(stage)
    stage.end("worker-2", 137, reason="OOMKilled")
    stage.settle()
    assert stage.state() == "Failed"
    assert stage.status.restarts == limit
    message = f"Job n has failed because it has reached its max number of restarts ({limit})"
    assert stage.condition(FAILED).message == message
    failure = stage.status.first_failure
    assert failure is not None
    assert (str(failure.replica), failure.attempt, failure.reason) == (
        "worker-2",
        limit,
        "OOMKilled",
    )


def test_event_tells_that_all_replicas_are_recreated() -> None:
    stage = three_workers(max_restarts=3)
    stage.end("worker-1", 1)
    stage.settle()
    (event,) = [event for event in stage.events if event.reason == "JAXJobRestarting"]
    assert event.message == (
        "JAXJob n is restarting because 1 Worker replica(s) failed. "
        "All replicas are recreated: restart 1 of 3 of the job."
    )
    assert stage.condition(RESTARTING).reason == "JAXJobRestarting"


def test_replicas_that_are_recreated_do_not_count_as_failed() -> None:
    stage = three_workers()
    stage.end("worker-1", 1)
    stage.settle()
    (workers,) = stage.status.replica_statuses.values()
    assert (workers.active, workers.failed) == (0, 1)


def test_permanent_exit_code_fails_the_job() -> None:
    stage = three_workers(EXIT_CODE)
    stage.end("worker-1", 1)
    stage.settle()
    assert stage.state() == "Failed"
    assert stage.status.restarts == 0


@pytest.mark.parametrize("policy", RestartPolicy)
def test_signal_restarts_the_job_under_every_restart_policy(policy: RestartPolicy) -> None:
    stage = three_workers(policy)
    stage.end("worker-1", 137)
    stage.settle()
    assert stage.status.restarts == 1


def test_first_failure_is_forgotten_when_the_job_runs_again() -> None:
    stage = three_workers()
    stage.end("worker-1", 1)
    stage.settle()
    assert stage.status.first_failure is not None
    next_round(stage)
    assert stage.status.first_failure is None


def test_first_failure_is_that_of_the_last_round() -> None:
    stage = three_workers(max_restarts=1)
    stage.end("worker-1", 1)
    stage.settle()
    stage.wait(1)
    stage.settle()
    stage.end("worker-2", 3)  # before any of the round was seen to run
    stage.settle()
    failure = stage.status.first_failure
    assert failure is not None
    assert (str(failure.replica), failure.attempt, failure.exit_code) == ("worker-2", 1, 3)


def test_failure_in_the_next_round_is_another_restart() -> None:
    stage = three_workers()
    stage.end("worker-1", 1)
    stage.settle()
    stage.wait(1)
    stage.settle()
    stage.run("worker-0")
    stage.settle()
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.status.restarts == 2
    assert stage.names() == []


def test_suspended_job_keeps_its_number_of_restarts() -> None:
    stage = three_workers(max_restarts=1)
    stage.end("worker-1", 1)
    stage.settle()
    stage.change_spec(run={"suspend": True})
    stage.settle()
    stage.change_spec(run={"suspend": False})
    stage.start()
    assert stage.names() == ["worker-0", "worker-1", "worker-2"]
    assert stage.status.restarts == 1


def test_success_takes_precedence_over_a_restart() -> None:
    together = JobRestartPolicy()
    stage = JobSimulation(
        job("PyTorchJob", ON_FAILURE, Master=1, Worker=1, together=together)
    ).start()
    stage.end("worker-0", 1)
    stage.end("master-0", 0)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_always_does_not_restart_a_replica_that_succeeded_alone() -> None:
    together = JobRestartPolicy()
    stage = JobSimulation(job("PyTorchJob", ALWAYS, Master=1, Worker=1, together=together)).start()
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.record("worker-0").completed
    assert stage.status.restarts == 0


def test_completed_replica_that_was_scaled_down_is_not_complete_in_the_next_round() -> None:
    stage = three_workers()
    stage.end("worker-2", 0)
    stage.settle()
    stage.change_spec(Worker=2)
    stage.settle()
    stage.end("worker-0", 1)
    stage.settle()
    stage.change_spec(Worker=3)
    next_round(stage)
    assert stage.names() == ["worker-0", "worker-1", "worker-2"]


def test_pods_are_not_restarted_in_place() -> None:
    stage = three_workers(ON_FAILURE)
    template = {"spec": {"containers": [{"name": "jax", "image": "image"}]}}
    specs = {
        type: msgspec.structs.replace(spec, template=template)
        for type, spec in stage.job.replicas.items()
    }
    subject = msgspec.structs.replace(stage.job, replicas=specs)
    topology = ServiceTopology(subject, stage.framework)
    pod = render_pod(subject, stage.framework, replica("worker-0", subject), topology)
    assert pod["spec"]["restartPolicy"] == "Never"
