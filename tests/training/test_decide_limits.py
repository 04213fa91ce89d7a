"""Deadlines that fire, a time to live that always cleans, and what is cleaned at the end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from danlu.training.types import (
    CleanPodPolicy,
    ConditionType,
    DeleteJob,
    Phase,
    RestartPolicy,
    RunPolicy,
)
from tests.training.stage import BEGIN, Stage, job

ALL, RUNNING, NONE = CleanPodPolicy
ON_FAILURE = RestartPolicy.ON_FAILURE
FAILED, SUCCEEDED = ConditionType.FAILED, ConditionType.SUCCEEDED


def master_and_workers(policy: RestartPolicy = RestartPolicy.NEVER, **run: Any) -> Stage:
    return Stage(job("PyTorchJob", policy, Master=1, Worker=2, run=RunPolicy(**run))).start()


# -- the active deadline


def test_a_quiet_job_is_looked_at_again_at_exactly_its_deadline() -> None:
    """Kubeflow asks a queue that nobody reads, and a quiet job outlives its deadline (#3358)."""
    stage = master_and_workers(active_deadline_seconds=60)
    stage.wait(12.5)
    decision = stage.settle()
    assert decision.requeue_after == 47.5
    stage.wait(47.5)
    stage.settle()
    assert stage.state() == "Failed"
    message = "Job n has failed because it was active longer than specified deadline"
    assert stage.condition(FAILED).message == message
    assert stage.status.completion_time == BEGIN + timedelta(seconds=60)


def test_a_job_lives_until_its_deadline() -> None:
    stage = master_and_workers(active_deadline_seconds=60)
    stage.wait(59.999)
    stage.settle()
    assert stage.state() == "Running"


def test_a_job_that_succeeded_misses_no_deadline() -> None:
    stage = master_and_workers(active_deadline_seconds=60)
    stage.end("master-0", 0)
    stage.wait(100)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_a_failure_is_the_reason_rather_than_the_deadline() -> None:
    stage = master_and_workers(active_deadline_seconds=60)
    stage.end("worker-0", 1)
    stage.wait(100)
    stage.settle()
    assert "1 Worker replica(s) failed" in stage.condition(FAILED).message


def test_the_next_look_is_at_the_next_restart_where_that_is_sooner() -> None:
    stage = master_and_workers(ON_FAILURE, active_deadline_seconds=60)
    stage.end("worker-0", 1)
    assert stage.settle().requeue_after == 1.0


def test_without_limits_nobody_looks_again_before_something_changes() -> None:
    assert master_and_workers().settle().requeue_after is None


def test_a_deadline_of_any_size_is_kept() -> None:
    stage = master_and_workers(active_deadline_seconds=2**62)
    assert stage.settle().requeue_after == pytest.approx(2**62)


# -- what is cleaned, however the job ends

ENDS = ["success", "failure", "deadline", "backoff"]


def finished(end: str, policy: CleanPodPolicy) -> Stage:
    """A job that ended so, with worker-0 ended and worker-1 running (and a third pending)."""
    restart = ON_FAILURE if end == "backoff" else RestartPolicy.NEVER
    run = RunPolicy(
        clean_pod_policy=policy,
        backoff_limit=0 if end == "backoff" else None,
        active_deadline_seconds=60 if end == "deadline" else None,
    )
    stage = Stage(job("PyTorchJob", restart, Master=1, Worker=3, run=run))
    stage.settle()
    stage.run("master-0", "worker-0", "worker-1")
    stage.settle()
    stage.end("worker-0", 1 if end in ("failure", "backoff") else 0)
    if end == "success":
        stage.end("master-0", 0)
    stage.wait(60)
    stage.settle()
    assert stage.state() == ("Succeeded" if end == "success" else "Failed")
    return stage


@pytest.mark.parametrize("end", ENDS)
def test_policy_none_removes_nothing(end: str) -> None:
    """Kubeflow 1.9 removes all replicas when a limit was passed (#3419)."""
    assert finished(end, NONE).deleted == []


@pytest.mark.parametrize("end", ENDS)
def test_policy_running_removes_what_runs_or_would(end: str) -> None:
    gone = {str(one.replica) for one in finished(end, RUNNING).deleted}
    running = {"worker-1", "worker-2"} | (set() if end == "success" else {"master-0"})
    assert gone == running


@pytest.mark.parametrize("end", ENDS)
def test_policy_all_removes_all(end: str) -> None:
    assert finished(end, ALL).names() == []


def test_what_is_being_removed_is_not_removed_again() -> None:
    stage = master_and_workers(clean_pod_policy=ALL)
    stage.end("master-0", 0)
    stage.write()
    stage.change("worker-0", deleting=True)
    stage.step()
    assert sorted(str(one.replica) for one in stage.deleted) == ["master-0", "worker-1"]


# -- the time to live


def test_a_finished_job_is_removed_when_its_time_is_over() -> None:
    stage = master_and_workers(ttl_seconds_after_finished=30)
    stage.end("master-0", 0)
    assert stage.settle().requeue_after == 30.0
    stage.wait(29)
    assert stage.settle().requeue_after == 1.0
    assert not stage.removed
    stage.wait(1)
    assert DeleteJob() in stage.step().actions


def test_no_time_to_live_removes_a_job_only_after_its_end_was_told() -> None:
    stage = master_and_workers(ttl_seconds_after_finished=0)
    stage.end("master-0", 0)
    first = stage.step()
    assert DeleteJob() not in first.actions
    assert first.requeue_after == 0.0
    assert DeleteJob() in stage.step().actions


def test_a_job_without_time_to_live_stays() -> None:
    stage = master_and_workers()
    stage.end("master-0", 0)
    assert stage.settle().requeue_after is None
    stage.wait(10**9)
    assert not stage.settle().actions


@pytest.mark.parametrize("type", [FAILED, SUCCEEDED])
def test_a_job_whose_completion_time_was_never_set_is_removed_too(type: ConditionType) -> None:
    """Kubeflow says "job completion time is nil, cannot cleanup" for ever."""
    stage = master_and_workers(ttl_seconds_after_finished=30)
    stage.end("master-0", 1 if type is FAILED else 0)
    stage.settle()
    stage.job = replace(stage.job, status=replace(stage.status, completion_time=None))
    stage.wait(10)
    assert stage.settle().requeue_after == 20.0
    stage.wait(20)
    assert DeleteJob() in stage.step().actions


def test_a_job_of_which_no_time_is_known_lives_from_now() -> None:
    stage = master_and_workers(ttl_seconds_after_finished=30)
    stage.end("master-0", 0)
    stage.settle()
    bare = tuple(replace(one, last_transition_time=None) for one in stage.status.conditions)
    status = replace(stage.status, completion_time=None, conditions=bare)
    stage.job = replace(stage.job, status=status)
    stage.wait(5)
    assert stage.settle().requeue_after == 30.0


def test_a_job_that_failed_by_a_limit_is_removed_too() -> None:
    stage = master_and_workers(active_deadline_seconds=60, ttl_seconds_after_finished=30)
    stage.wait(60)
    assert stage.settle().requeue_after == 30.0
    stage.wait(30)
    assert DeleteJob() in stage.step().actions


def test_what_still_runs_of_a_failed_job_is_told_truly() -> None:
    stage = master_and_workers(clean_pod_policy=ALL)
    stage.end("master-0", 1)
    stage.settle()
    workers = stage.status.replica_statuses[stage.framework.types[1]]
    assert (workers.active, workers.succeeded, workers.failed) == (0, 0, 0)


def test_what_still_ran_when_the_job_succeeded_succeeded_with_it() -> None:
    stage = master_and_workers()
    stage.end("master-0", 0)
    stage.settle()
    workers = stage.status.replica_statuses[stage.framework.types[1]]
    assert (workers.active, workers.succeeded) == (0, 2)
    assert [one.phase for one in stage.there.values()].count(Phase.RUNNING) == 2
