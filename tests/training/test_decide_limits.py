"""Active deadlines, the clean-pod policy and the TTL of finished jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from danlu.training.types import (
    CleanPodPolicy,
    ConditionType,
    DeleteJob,
    ReplicaPhase,
    RestartPolicy,
    RunPolicy,
)
from tests.training.job_simulation import BEGIN, JobSimulation, job

ALL, RUNNING, NONE = CleanPodPolicy
ON_FAILURE = RestartPolicy.ON_FAILURE
FAILED, SUCCEEDED = ConditionType.FAILED, ConditionType.SUCCEEDED


def master_and_workers(policy: RestartPolicy = RestartPolicy.NEVER, **run: Any) -> JobSimulation:
    return JobSimulation(
        job("PyTorchJob", policy, Master=1, Worker=2, run=RunPolicy(**run))
    ).start()


# -- the active deadline


def test_idle_job_is_requeued_exactly_at_its_deadline() -> None:
    """In Kubeflow the requeue is lost, and an idle job outlives its deadline (#3358)."""
    stage = master_and_workers(active_deadline_seconds=60)
    stage.wait(12.5)
    decision = stage.settle()
    assert decision.requeue_after == 47.5
    stage.wait(47.5)
    stage.settle()
    assert stage.state() == "Failed"
    message = "Job n has failed because it was active longer than specified deadline"
    names = "master-0, worker-0, worker-1"
    assert stage.condition(FAILED).message == f"{message}; not finished: {names}"
    assert stage.status.completion_time == BEGIN + timedelta(seconds=60)


def test_job_runs_until_its_deadline() -> None:
    stage = master_and_workers(active_deadline_seconds=60)
    stage.wait(59.999)
    stage.settle()
    assert stage.state() == "Running"


def test_success_takes_precedence_over_the_deadline() -> None:
    stage = master_and_workers(active_deadline_seconds=60)
    stage.end("master-0", 0)
    stage.wait(100)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_failure_takes_precedence_over_the_deadline() -> None:
    stage = master_and_workers(active_deadline_seconds=60)
    stage.end("worker-0", 1)
    stage.wait(100)
    stage.settle()
    assert "1 Worker replica(s) failed" in stage.condition(FAILED).message


def test_job_is_requeued_at_a_restart_before_the_deadline() -> None:
    stage = master_and_workers(ON_FAILURE, active_deadline_seconds=60)
    stage.end("worker-0", 1)
    assert stage.settle().requeue_after == 1.0


def test_job_without_limits_is_not_requeued() -> None:
    assert master_and_workers().settle().requeue_after is None


def test_very_long_deadline_is_kept() -> None:
    stage = master_and_workers(active_deadline_seconds=2**62)
    assert stage.settle().requeue_after == pytest.approx(2**62)


# -- the clean-pod policy

ENDS = ["success", "failure", "deadline", "backoff"]


def finished_stage(end: str, policy: CleanPodPolicy) -> JobSimulation:
    """Return a finished job: worker-0 has ended, worker-1 runs and worker-2 is pending."""
    restart = ON_FAILURE if end == "backoff" else RestartPolicy.NEVER
    run = RunPolicy(
        clean_pod_policy=policy,
        backoff_limit=0 if end == "backoff" else None,
        active_deadline_seconds=60 if end == "deadline" else None,
    )
    stage = JobSimulation(job("PyTorchJob", restart, Master=1, Worker=3, run=run))
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
def test_clean_pod_policy_none_deletes_nothing(end: str) -> None:
    """Kubeflow 1.9 deletes all replicas once a limit is exceeded (#3419)."""
    assert finished_stage(end, NONE).deleted == []


@pytest.mark.parametrize("end", ENDS)
def test_clean_pod_policy_running_deletes_running_and_pending_replicas(end: str) -> None:
    gone = {str(action.replica) for action in finished_stage(end, RUNNING).deleted}
    running = {"worker-1", "worker-2"} | (set() if end == "success" else {"master-0"})
    assert gone == running


@pytest.mark.parametrize("end", ENDS)
def test_clean_pod_policy_all_deletes_all_replicas(end: str) -> None:
    assert finished_stage(end, ALL).names() == []


def test_terminating_replica_is_not_deleted_again() -> None:
    stage = master_and_workers(clean_pod_policy=ALL)
    stage.end("master-0", 0)
    stage.write()
    stage.change("worker-0", deleting=True)
    stage.step()
    assert sorted(str(action.replica) for action in stage.deleted) == ["master-0", "worker-1"]


# -- the TTL


def test_finished_job_is_deleted_after_its_ttl() -> None:
    stage = master_and_workers(ttl_seconds_after_finished=30)
    stage.end("master-0", 0)
    assert stage.settle().requeue_after == 30.0
    stage.wait(29)
    assert stage.settle().requeue_after == 1.0
    assert not stage.removed
    stage.wait(1)
    assert DeleteJob() in stage.step().actions


def test_zero_ttl_deletes_a_job_only_after_its_final_status_is_written() -> None:
    stage = master_and_workers(ttl_seconds_after_finished=0)
    stage.end("master-0", 0)
    first = stage.step()
    assert DeleteJob() not in first.actions
    assert first.requeue_after == 0.0
    assert DeleteJob() in stage.step().actions


def test_job_without_ttl_is_not_deleted() -> None:
    stage = master_and_workers()
    stage.end("master-0", 0)
    assert stage.settle().requeue_after is None
    stage.wait(10**9)
    assert not stage.settle().actions


@pytest.mark.parametrize("type", [FAILED, SUCCEEDED])
def test_ttl_applies_without_a_completion_time(type: ConditionType) -> None:
    """Kubeflow logs "job completion time is nil, cannot cleanup" for ever."""
    stage = master_and_workers(ttl_seconds_after_finished=30)
    stage.end("master-0", 1 if type is FAILED else 0)
    stage.settle()
    stage.job = replace(stage.job, status=replace(stage.status, completion_time=None))
    stage.wait(10)
    assert stage.settle().requeue_after == 20.0
    stage.wait(20)
    assert DeleteJob() in stage.step().actions


def test_ttl_starts_now_if_no_time_is_recorded() -> None:
    stage = master_and_workers(ttl_seconds_after_finished=30)
    stage.end("master-0", 0)
    stage.settle()
    bare = tuple(
        replace(condition, last_transition_time=None) for condition in stage.status.conditions
    )
    status = replace(stage.status, completion_time=None, conditions=bare)
    stage.job = replace(stage.job, status=status)
    stage.wait(5)
    assert stage.settle().requeue_after == 30.0


def test_ttl_applies_to_a_job_that_exceeded_its_deadline() -> None:
    stage = master_and_workers(active_deadline_seconds=60, ttl_seconds_after_finished=30)
    stage.wait(60)
    assert stage.settle().requeue_after == 30.0
    stage.wait(30)
    assert DeleteJob() in stage.step().actions


def test_replica_counts_of_a_failed_job_are_accurate() -> None:
    stage = master_and_workers(clean_pod_policy=ALL)
    stage.end("master-0", 1)
    stage.settle()
    workers = stage.status.replica_statuses[stage.framework.replica_types[1]]
    assert (workers.active, workers.succeeded, workers.failed) == (0, 0, 0)


def test_running_replicas_of_a_succeeded_job_count_as_succeeded() -> None:
    stage = master_and_workers()
    stage.end("master-0", 0)
    stage.settle()
    workers = stage.status.replica_statuses[stage.framework.replica_types[1]]
    assert (workers.active, workers.succeeded) == (0, 2)
    assert [attempt.phase for attempt in stage.attempts.values()].count(ReplicaPhase.RUNNING) == 2
