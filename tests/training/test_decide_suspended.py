"""Suspend and resume: all go, nothing that decides is lost, and it is told once."""

from __future__ import annotations

from datetime import timedelta

from danlu.training.types import (
    CleanPodPolicy,
    ConditionType,
    Phase,
    RestartPolicy,
    RunPolicy,
)
from tests.training.stage import BEGIN, Stage, job

SUSPENDED, RUNNING = ConditionType.SUSPENDED, ConditionType.RUNNING


def begun(policy: RestartPolicy = RestartPolicy.NEVER, run: RunPolicy | None = None) -> Stage:
    return Stage(job("PyTorchJob", policy, Master=1, Worker=2, run=run)).start()


def suspend(stage: Stage) -> Stage:
    stage.ask(run={"suspend": True})
    stage.settle()
    return stage


def resume(stage: Stage) -> Stage:
    stage.ask(run={"suspend": False})
    stage.settle()
    return stage


def test_a_job_that_begins_suspended_makes_nothing() -> None:
    stage = Stage(job("PyTorchJob", Master=1, Worker=2, run=RunPolicy(suspend=True)))
    stage.settle()
    assert stage.names() == []
    assert [one.type for one in stage.status.conditions] == ["Created", "Suspended"]
    assert stage.status.start_time is None
    assert stage.reasons() == ["PyTorchJobSuspended"]


def test_a_suspended_job_loses_all_its_replicas_whatever_its_policy() -> None:
    stage = suspend(begun(run=RunPolicy(clean_pod_policy=CleanPodPolicy.NONE)))
    assert stage.names() == []
    assert all(one.active == 0 for one in stage.status.replica_statuses.values())


def test_a_suspended_job_does_not_run() -> None:
    stage = suspend(begun())
    running, suspended = stage.condition(RUNNING), stage.condition(SUSPENDED)
    assert (running.status, running.reason) == ("False", "PyTorchJobSuspended")
    assert (suspended.status, suspended.message) == ("True", "PyTorchJob n is suspended.")
    assert stage.state() == "Suspended"


def test_a_suspended_job_does_not_restart() -> None:
    stage = begun(RestartPolicy.ON_FAILURE)
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.state() == "Restarting"
    suspend(stage)
    assert not stage.status.has(ConditionType.RESTARTING)


def test_it_is_told_once_not_each_pass() -> None:
    """Kubeflow tells of a suspended job each time that it looks."""
    stage = suspend(begun())
    stage.wait(60)
    stage.settle()
    assert stage.reasons() == ["PyTorchJobSuspended"]
    resume(stage)
    stage.settle()
    assert stage.reasons() == ["PyTorchJobSuspended", "PyTorchJobResumed"]


def test_a_resumed_job_begins_anew_and_so_does_its_deadline() -> None:
    stage = begun(run=RunPolicy(active_deadline_seconds=60))
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


def test_suspending_counts_as_no_restart_and_no_failure() -> None:
    stage = begun(RestartPolicy.NEVER, RunPolicy(backoff_limit=0))
    stage.ask(run={"suspend": True})
    stage.write()
    for name in stage.names():
        stage.change(name, deleting=True)
        stage.end(name, 143)
    stage.settle()
    stage.vanish()
    stage.settle()
    resume(stage)
    assert stage.state() != "Failed"
    assert all(one.restarts == 0 for one in stage.status.records.values())
    assert {one.attempt for one in stage.made[3:]} == {1}


def test_nothing_is_made_before_what_was_suspended_is_gone() -> None:
    stage = begun()
    stage.ask(run={"suspend": True})
    stage.write()
    for name in stage.names():
        stage.change(name, deleting=True)
    resume(stage)
    assert len(stage.made) == 3
    stage.vanish()
    stage.settle()
    assert len(stage.made) == 6


def test_what_was_completed_before_is_not_done_again() -> None:
    stage = begun()
    stage.end("worker-0", 0)
    stage.settle()
    resume(suspend(stage))
    assert stage.names() == ["master-0", "worker-1"]


def test_what_ended_well_because_it_was_told_to_is_done_again() -> None:
    stage = begun()
    stage.ask(run={"suspend": True})
    stage.write()
    stage.change("worker-0", deleting=True)
    stage.end("worker-0", 0)
    stage.settle()
    resume(stage)
    assert "worker-0" in stage.names()


def test_restarts_of_before_count_on() -> None:
    stage = begun(RestartPolicy.ON_FAILURE, RunPolicy(backoff_limit=1))
    stage.end("worker-0", 1)
    stage.settle()
    resume(suspend(stage))
    assert stage.names() == ["master-0", "worker-0", "worker-1"]
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.state() == "Failed"


def test_a_failure_seen_when_the_job_is_suspended_ends_nothing() -> None:
    stage = begun()
    stage.end("worker-0", 1)
    resume(suspend(stage))
    assert stage.names() == ["master-0", "worker-0", "worker-1"]
    assert stage.state() == "Suspended"
    assert stage.status.first_failure is None


def test_a_finished_job_cannot_be_suspended() -> None:
    stage = begun()
    stage.end("master-0", 0)
    stage.settle()
    suspend(stage)
    assert stage.state() == "Succeeded"
    assert stage.names() == ["master-0", "worker-0", "worker-1"]
    assert [one.phase for one in stage.there.values()].count(Phase.RUNNING) == 2
