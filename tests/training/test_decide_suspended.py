"""Suspending deletes all replicas, keeps the records, and is recorded once."""

from __future__ import annotations

from datetime import timedelta

from danlu.training.types import (
    CleanPodPolicy,
    ConditionType,
    ReplicaPhase,
    RestartPolicy,
    RunPolicy,
)
from tests.training.job_simulation import BEGIN, JobSimulation, job

SUSPENDED, RUNNING = ConditionType.SUSPENDED, ConditionType.RUNNING


def started_stage(
    policy: RestartPolicy = RestartPolicy.NEVER, run: RunPolicy | None = None
) -> JobSimulation:
    return JobSimulation(job("PyTorchJob", policy, Master=1, Worker=2, run=run)).start()


def suspend(stage: JobSimulation) -> JobSimulation:
    stage.change_spec(run={"suspend": True})
    stage.settle()
    return stage


def resume(stage: JobSimulation) -> JobSimulation:
    stage.change_spec(run={"suspend": False})
    stage.settle()
    return stage


def test_job_created_suspended_creates_no_replicas() -> None:
    stage = JobSimulation(job("PyTorchJob", Master=1, Worker=2, run=RunPolicy(suspend=True)))
    stage.settle()
    assert stage.names() == []
    assert [condition.type for condition in stage.status.conditions] == ["Created", "Suspended"]
    assert stage.status.start_time is None
    assert stage.reasons() == ["PyTorchJobSuspended"]


def test_suspending_deletes_all_replicas_under_any_clean_pod_policy() -> None:
    stage = suspend(started_stage(run=RunPolicy(clean_pod_policy=CleanPodPolicy.NONE)))
    assert stage.names() == []
    assert all(counts.active == 0 for counts in stage.status.replica_statuses.values())


def test_suspended_job_is_not_running() -> None:
    stage = suspend(started_stage())
    running, suspended = stage.condition(RUNNING), stage.condition(SUSPENDED)
    assert (running.status, running.reason) == ("False", "PyTorchJobSuspended")
    assert (suspended.status, suspended.message) == ("True", "PyTorchJob n is suspended.")
    assert stage.state() == "Suspended"


def test_suspended_job_is_not_restarting() -> None:
    stage = started_stage(RestartPolicy.ON_FAILURE)
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.state() == "Restarting"
    suspend(stage)
    assert not stage.status.has_condition(ConditionType.RESTARTING)


def test_suspend_and_resume_events_are_recorded_once() -> None:
    """Kubeflow records an event for a suspended job in every reconcile."""
    stage = suspend(started_stage())
    stage.wait(60)
    stage.settle()
    assert stage.reasons() == ["PyTorchJobSuspended"]
    resume(stage)
    stage.settle()
    assert stage.reasons() == ["PyTorchJobSuspended", "PyTorchJobResumed"]


def test_resuming_restarts_the_job_and_its_deadline() -> None:
    stage = started_stage(run=RunPolicy(active_deadline_seconds=60))
    stage.wait(50)
    suspend(stage)
    stage.wait(1000)
    assert stage.settle().requeue_after is None
    resume(stage)
    assert stage.names() == ["master-0", "worker-0", "worker-1"]
    assert stage.status.start_time == BEGIN + timedelta(seconds=1050)
    assert stage.settle().requeue_after == 60.0
    stage.run()
    stage.settle()
    assert stage.state() == "Running"
    resumed = stage.condition(SUSPENDED)
    assert (resumed.status, resumed.reason) == ("False", "PyTorchJobResumed")
    assert resumed.message == "PyTorchJob n is resumed."


def test_suspending_is_neither_a_restart_nor_a_failure() -> None:
    stage = started_stage(RestartPolicy.NEVER, RunPolicy(backoff_limit=0))
    stage.change_spec(run={"suspend": True})
    stage.write()
    for name in stage.names():
        stage.change(name, deleting=True)
        stage.end(name, 143)
    stage.settle()
    stage.vanish()
    stage.settle()
    resume(stage)
    assert stage.state() != "Failed"
    assert all(record.restarts == 0 for record in stage.status.records.values())
    assert {action.attempt for action in stage.created[3:]} == {1}


def test_resumed_job_waits_until_suspended_replicas_are_gone() -> None:
    stage = started_stage()
    stage.change_spec(run={"suspend": True})
    stage.write()
    for name in stage.names():
        stage.change(name, deleting=True)
    resume(stage)
    assert len(stage.created) == 3
    stage.vanish()
    stage.settle()
    assert len(stage.created) == 6


def test_completed_replica_is_not_recreated_after_resume() -> None:
    stage = started_stage()
    stage.end("worker-0", 0)
    stage.settle()
    resume(suspend(stage))
    assert stage.names() == ["master-0", "worker-1"]


def test_replica_stopped_by_suspending_is_recreated_after_resume() -> None:
    stage = started_stage()
    stage.change_spec(run={"suspend": True})
    stage.write()
    stage.change("worker-0", deleting=True)
    stage.end("worker-0", 0)
    stage.settle()
    resume(stage)
    assert "worker-0" in stage.names()


def test_restarts_before_suspending_count_towards_the_backoff_limit() -> None:
    stage = started_stage(RestartPolicy.ON_FAILURE, RunPolicy(backoff_limit=1))
    stage.end("worker-0", 1)
    stage.settle()
    resume(suspend(stage))
    assert stage.names() == ["master-0", "worker-0", "worker-1"]
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.state() == "Failed"


def test_failure_observed_while_suspended_does_not_fail_the_job() -> None:
    stage = started_stage()
    stage.end("worker-0", 1)
    resume(suspend(stage))
    assert stage.names() == ["master-0", "worker-0", "worker-1"]
    assert stage.state() == "Suspended"
    assert stage.status.first_failure is None


def test_finished_job_cannot_be_suspended() -> None:
    stage = started_stage()
    stage.end("master-0", 0)
    stage.settle()
    suspend(stage)
    assert stage.state() == "Succeeded"
    assert stage.names() == ["master-0", "worker-0", "worker-1"]
    assert [attempt.phase for attempt in stage.attempts.values()].count(ReplicaPhase.RUNNING) == 2
