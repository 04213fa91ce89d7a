"""Once the job has succeeded, replicas that end by themselves get time to finish."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from danlu.training.registry import find_framework
from danlu.training.types import (
    CleanPodPolicy,
    ConditionType,
    ElasticPolicy,
    Event,
    FinishPolicy,
    Job,
    ReplicaPhase,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)
from tests.training.job_simulation import JobSimulation, job

LOCAL = FinishPolicy(timeout=3600.0, idle=30.0, stops_all=True)
SUCCEEDED = ConditionType.SUCCEEDED
RUNNING_POLICY = RunPolicy(clean_pod_policy=CleanPodPolicy.RUNNING)


def finishing_stage(given: Job | None = None, policy: FinishPolicy = LOCAL) -> JobSimulation:
    """Return a job whose master has succeeded while its workers run."""
    given = given or job("PyTorchJob", Master=1, Worker=2, run=RUNNING_POLICY)
    stage = JobSimulation(given, policy).start()
    for name in stage.names():
        stage.change(name, active=stage.now)
    stage.end("master-0", 0)
    stage.settle()
    return stage


def notes(stage: JobSimulation) -> tuple[str, ...]:
    assert stage.status.finishing is not None
    return stage.status.finishing.notes


def test_job_waits_for_workers_after_the_master_succeeded() -> None:
    stage = finishing_stage()
    assert not stage.status.finished
    assert stage.deleted == []
    message = "PyTorchJob n has succeeded; waiting up to 1 h for worker-0, worker-1."
    assert stage.events[-1] == Event("Normal", "PyTorchJobFinishing", message)
    stage.wait(3)
    stage.end("worker-0", 0)
    stage.end("worker-1", 0)
    stage.settle()
    assert stage.state() == "Succeeded"
    assert notes(stage) == ()
    assert stage.condition(SUCCEEDED).message == "PyTorchJob n is successfully completed."
    assert [record.completed for record in stage.status.records.values()] == [True] * 3


def test_default_finish_policy_finishes_at_once_as_in_kubeflow() -> None:
    stage = finishing_stage(policy=FinishPolicy())
    assert stage.state() == "Succeeded"
    assert [str(action.replica) for action in stage.deleted] == ["worker-0", "worker-1"]
    assert stage.status.finishing is None


def test_finish_timeout_annotation_makes_the_job_wait() -> None:
    value = job("PyTorchJob", Master=1, Worker=1, run=RUNNING_POLICY)
    value = _with_annotation(value, "90s")
    stage = finishing_stage(value, FinishPolicy())
    assert not stage.status.finished
    assert stage.decide().requeue_after == 30.0
    stage.change("worker-0", active=None)
    assert stage.decide().requeue_after == 90.0


def _with_annotation(given: Job, text: str) -> Job:
    return replace(given, annotations={"danlu.dev/finish-timeout": text})


def test_invalid_finish_timeout_annotation_is_ignored() -> None:
    value = _with_annotation(job("PyTorchJob", Master=1, Worker=1, run=RUNNING_POLICY), "soon")
    assert finishing_stage(value, FinishPolicy()).state() == "Succeeded"
    assert not finishing_stage(value, LOCAL).status.finished


def test_idle_worker_is_stopped_and_reported() -> None:
    stage = finishing_stage()
    stage.wait(10)
    stage.end("worker-0", 0)
    stage.settle()
    # Another replica ending counts as progress: worker-1 may have waited for it.
    assert stage.decide().requeue_after == 30.0
    stage.wait(30)
    stage.settle()
    assert stage.state() == "Succeeded"
    assert [str(action.replica) for action in stage.deleted] == ["worker-1"]
    note = "worker-1 was stopped while still running, 40.0 s after the job succeeded"
    assert notes(stage) == (note,)
    assert stage.condition(SUCCEEDED).message == (
        f"PyTorchJob n is successfully completed. {note}."
    )
    warnings = [(event.reason, event.message) for event in stage.events if event.type == "Warning"]
    assert warnings == [("PyTorchJobUnfinished", f"{note}.")]


def test_progress_of_one_worker_keeps_all_running() -> None:
    stage = finishing_stage()
    for _ in range(10):
        stage.wait(20)
        stage.change("worker-1", active=stage.now)
        stage.settle()
    assert stage.names() == ["master-0", "worker-0", "worker-1"]
    assert not stage.status.finished


def test_finish_timeout_applies_despite_progress() -> None:
    stage = finishing_stage(policy=FinishPolicy(timeout=60.0, stops_all=True))
    for _ in range(3):
        stage.wait(20)
        stage.change("worker-0", active=stage.now)
        stage.change("worker-1", active=stage.now)
        stage.settle()
    (note,) = notes(stage)
    assert note == (
        "worker-0, worker-1 were stopped while still running, 1 min after the job succeeded"
    )


def test_zero_finish_timeout_stops_and_reports_running_replicas() -> None:
    stage = finishing_stage(policy=FinishPolicy(timeout=0.0, stops_all=True))
    assert stage.state() == "Succeeded"
    assert "worker-0, worker-1 were stopped while still running" in notes(stage)[0]


def test_clean_pod_policy_none_leaves_and_reports_running_replicas() -> None:
    stage = finishing_stage(
        job("PyTorchJob", Master=1, Worker=1), FinishPolicy(timeout=5.0, stops_all=False)
    )
    stage.wait(5)
    stage.settle()
    assert stage.deleted == []
    assert notes(stage) == ("worker-0 was still running, 5.0 s after the job succeeded",)


def test_worker_that_fails_while_finishing_is_reported_and_not_restarted() -> None:
    stage = finishing_stage(job("PyTorchJob", RestartPolicy.ON_FAILURE, Master=1, Worker=1))
    stage.wait(1)
    stage.end("worker-0", 28)
    stage.settle()
    assert stage.state() == "Succeeded"
    note = "worker-0 failed (exit code 28) and was not restarted: the job had succeeded"
    assert notes(stage) == (note,)
    assert stage.record("worker-0").failed
    assert stage.record("worker-0").restarts == 0
    assert [event.message for event in stage.events if event.type == "Warning"] == [f"{note}."]
    assert stage.status.first_failure is None


def test_worker_waiting_for_a_restart_is_reported() -> None:
    stage = JobSimulation(
        job("PyTorchJob", RestartPolicy.ON_FAILURE, Master=1, Worker=1), LOCAL
    ).start()
    stage.end("worker-0", 7)
    stage.settle()
    stage.end("master-0", 0)
    stage.settle()
    stage.wait(9)
    stage.settle()
    assert stage.state() == "Succeeded"
    assert len(notes(stage)) == 1
    assert stage.names() == ["master-0"]


def test_restart_policy_always_does_not_apply_while_finishing() -> None:
    stage = finishing_stage(job("PyTorchJob", RestartPolicy.ALWAYS, Master=1, Worker=2))
    stage.end("worker-0", 0)
    assert stage.decide().status.replica_statuses[ReplicaType("Worker")].succeeded == 1
    stage.settle()
    assert "worker-0" in stage.names()
    assert stage.record("worker-0").completed
    stage.end("worker-1", 0)
    stage.settle()
    assert stage.state() == "Succeeded"
    assert notes(stage) == ()


@pytest.mark.parametrize(
    ("kind", "numbers", "decider"),
    [
        ("TFJob", {"Chief": 1, "PS": 2}, "chief-0"),
        ("MPIJob", {"Launcher": 1, "Worker": 2}, "launcher-0"),
        ("MXJob", {"Scheduler": 1, "Server": 1}, "scheduler-0"),
    ],
)
def test_job_does_not_wait_for_server_replicas(
    kind: str, numbers: dict[str, Any], decider: str
) -> None:
    stage = JobSimulation(job(kind, run=RUNNING_POLICY, **numbers), LOCAL).start()
    stage.end(decider, 0)
    stage.settle()
    assert stage.state() == "Succeeded"
    assert notes(stage) == ()
    assert len(stage.deleted) == sum(numbers.values()) - 1


@pytest.mark.parametrize(
    ("kind", "numbers", "decider"),
    [
        ("TFJob", {"Chief": 1, "Evaluator": 1}, "chief-0"),
        ("TFJob", {"Worker": 2}, "worker-0"),
        ("XGBoostJob", {"Master": 1, "Worker": 1}, "master-0"),
        ("PaddleJob", {"Master": 1, "Worker": 1}, "master-0"),
        ("MXJob", {"Scheduler": 1, "Server": 1, "Worker": 1}, "scheduler-0"),
    ],
)
def test_job_waits_for_replicas_that_end_by_themselves(
    kind: str, numbers: dict[str, Any], decider: str
) -> None:
    stage = JobSimulation(job(kind, run=RUNNING_POLICY, **numbers), LOCAL).start()
    stage.end(decider, 0)
    stage.settle()
    assert not stage.status.finished
    assert stage.deleted == []


def test_elastic_job_waits_for_workers_after_the_first_success() -> None:
    elastic = ElasticPolicy(min_replicas=1, max_replicas=3)
    stage = JobSimulation(
        job("PyTorchJob", Worker=3, elastic=elastic, run=RUNNING_POLICY), LOCAL
    ).start()
    stage.end("worker-1", 0)
    stage.settle()
    assert not stage.status.finished
    stage.change_spec(Worker=2)
    stage.settle()
    assert [str(action.replica) for action in stage.deleted] == ["worker-2"]
    stage.change_spec(Worker=3)
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1"]


def test_failure_while_finishing_does_not_change_the_outcome() -> None:
    """The evaluator takes precedence over workers: its failure would fail the job."""
    stage = JobSimulation(job("TFJob", Evaluator=1, Worker=2), LOCAL).start()
    stage.end("worker-0", 0)
    stage.settle()
    stage.end("evaluator-0", 1)
    stage.end("worker-1", 0)
    stage.settle()
    assert stage.state() == "Succeeded"
    assert "evaluator-0 failed" in notes(stage)[0]


def test_active_deadline_while_finishing_does_not_fail_the_job() -> None:
    stage = finishing_stage(
        job("PyTorchJob", Master=1, Worker=1, run=RunPolicy(active_deadline_seconds=10))
    )
    assert stage.decide().requeue_after == 10.0
    stage.wait(10)
    stage.settle()
    assert stage.state() == "Succeeded"
    assert "worker-0 was stopped" in notes(stage)[0]


def test_suspending_a_finishing_job_stops_replicas_and_succeeds() -> None:
    stage = finishing_stage(job("PyTorchJob", Master=1, Worker=1))
    stage.change_spec(run={"suspend": True})
    decision = stage.write()
    # A restart before the actions are applied gives the same decision.
    assert [type(action).__name__ for action in stage.decide().actions] == ["DeleteReplica"]
    assert "DeleteReplica" in [type(action).__name__ for action in decision.actions]
    stage.settle()
    assert stage.state() == "Succeeded"
    assert stage.names() == ["master-0"]
    assert "worker-0 was stopped" in notes(stage)[0]


def test_job_waits_for_a_pending_replica() -> None:
    stage = JobSimulation(job("PyTorchJob", Master=1, Worker=1), LOCAL)
    stage.settle()
    stage.run("master-0")
    stage.end("master-0", 0)
    stage.settle()
    assert not stage.status.finished
    stage.run("worker-0")
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.status.finished
    assert stage.attempt("worker-0").phase is ReplicaPhase.SUCCEEDED


def test_server_types_are_replica_types_of_the_framework() -> None:
    for kind in ("TFJob", "MPIJob", "MXJob"):
        framework = find_framework(kind)
        assert framework.server_types
        assert set(framework.server_types) <= set(framework.replica_types)
