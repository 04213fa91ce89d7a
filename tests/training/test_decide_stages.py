"""Replica types that wait for others."""

from __future__ import annotations

from typing import Literal

import pytest

from danlu.training.dependencies import check_dependencies
from danlu.training.types import (
    ConditionType,
    Dependency,
    JobRestartPolicy,
    ReplicaType,
    RestartPolicy,
)
from tests.training.job_simulation import JobSimulation, job

ALWAYS, ON_FAILURE, NEVER, _ = RestartPolicy
MASTER, WORKER = ReplicaType("Master"), ReplicaType("Worker")


def workers_first(
    status: Literal["Ready", "Complete"],
    policy: RestartPolicy = NEVER,
    *,
    together: JobRestartPolicy | None = None,
) -> JobSimulation:
    """Return a job whose master waits for two workers."""
    waits = {"Master": [Dependency(WORKER, status)]}
    stage = JobSimulation(
        job("PyTorchJob", policy, Master=1, Worker=2, depends_on=waits, together=together)
    )
    stage.settle()
    return stage


def test_type_without_dependencies_is_created_first() -> None:
    assert workers_first("Ready").names() == ["worker-0", "worker-1"]


def test_ready_waits_until_all_replicas_run() -> None:
    stage = workers_first("Ready")
    stage.run("worker-0")
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1"]
    stage.run("worker-1")
    stage.settle()
    assert stage.names() == ["master-0", "worker-0", "worker-1"]


def test_replica_that_has_succeeded_is_ready() -> None:
    stage = workers_first("Ready")
    stage.run()
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.names() == ["master-0", "worker-0", "worker-1"]


def test_complete_waits_until_all_replicas_have_succeeded() -> None:
    stage = workers_first("Complete")
    stage.run()
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1"]
    stage.end("worker-1", 0)
    stage.settle()
    assert stage.names() == ["master-0", "worker-0", "worker-1"]


def test_completed_stage_stays_complete_without_its_pods() -> None:
    stage = workers_first("Complete")
    stage.run()
    stage.end("worker-0", 0)
    stage.settle()
    stage.vanish("worker-0")
    stage.end("worker-1", 0)
    stage.settle()
    assert "master-0" in stage.names()


def test_job_succeeds_with_its_last_stage() -> None:
    stage = workers_first("Complete")
    stage.run()
    stage.end("worker-0", 0)
    stage.end("worker-1", 0)
    stage.settle()
    assert not stage.status.finished
    stage.run("master-0")
    stage.end("master-0", 0)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_stage_that_fails_fails_the_job() -> None:
    stage = workers_first("Complete")
    stage.run()
    stage.end("worker-1", 1)
    stage.settle()
    assert stage.state() == "Failed"
    assert not [action for action in stage.created if action.replica.type == "Master"]


def test_stage_whose_failures_the_framework_tolerates_fails_the_job() -> None:
    """``enableDynamicWorker`` goes on without some of its workers; the chief would wait forever."""
    waits = {"Chief": [Dependency(WORKER, "Complete")]}
    options = {"enableDynamicWorker": True}
    stage = JobSimulation(
        job("TFJob", NEVER, Chief=1, Worker=2, depends_on=waits, options=options)
    ).start()
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.state() == "Failed"
    assert stage.condition(ConditionType.FAILED).message.endswith("1 Worker replica(s) failed.")


def test_stage_is_restarted_by_its_policy() -> None:
    stage = workers_first("Complete", ON_FAILURE)
    stage.run()
    stage.end("worker-0", 1)
    stage.end("worker-1", 0)
    stage.settle()
    stage.wait(1)
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1"]
    stage.end("worker-0", 0)
    stage.settle()
    assert "master-0" in stage.names()


def test_always_does_not_restart_a_stage_that_succeeded() -> None:
    stage = workers_first("Complete", ALWAYS)
    stage.run()
    stage.end("worker-0", 0)
    stage.end("worker-1", 0)
    stage.settle()
    assert "master-0" in stage.names()


def test_replica_is_kept_if_its_dependency_fails_later() -> None:
    stage = workers_first("Ready", ON_FAILURE)
    stage.run()
    stage.settle()
    stage.run("master-0")
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.names() == ["master-0", "worker-1"]


def test_next_attempt_waits_for_its_dependencies_again() -> None:
    stage = workers_first("Ready", ON_FAILURE)
    stage.run()
    stage.settle()
    stage.run("master-0")
    stage.end("master-0", 1)
    stage.end("worker-0", 1)
    stage.settle()
    stage.wait(1)
    assert stage.settle().requeue_after is None
    assert stage.names() == ["worker-0", "worker-1"]
    stage.run("worker-0")
    stage.settle()
    assert "master-0" in stage.names()


def test_job_restart_begins_with_the_first_stage() -> None:
    """JobSet recreates all jobs, those that have succeeded too."""
    stage = workers_first("Complete", together=JobRestartPolicy())
    stage.run()
    stage.end("worker-0", 0)
    stage.end("worker-1", 0)
    stage.settle()
    stage.run("master-0")
    stage.end("master-0", 137)
    stage.settle()
    assert stage.names() == []
    stage.wait(1)
    stage.settle()
    assert stage.names() == ["worker-0", "worker-1"]


def test_resumed_job_continues_with_the_next_stage() -> None:
    stage = workers_first("Complete")
    stage.run()
    stage.end("worker-0", 0)
    stage.end("worker-1", 0)
    stage.settle()
    stage.change_spec(run={"suspend": True})
    stage.settle()
    assert stage.names() == []
    stage.change_spec(run={"suspend": False})
    stage.settle()
    assert stage.names() == ["master-0"]


@pytest.mark.parametrize(
    ("waits", "messages"),
    [
        ({"Master": [Dependency(WORKER, "Ready")]}, []),
        (
            {"Master": [Dependency(ReplicaType("Node"), "Ready")]},
            ["replica type Node not found"],
        ),
        ({"Master": [Dependency(MASTER, "Ready")]}, ["Master itself waits for Master"]),
        (
            {"Master": [Dependency(WORKER, "Ready")], "Worker": [Dependency(MASTER, "Complete")]},
            ["Worker itself waits for Master", "Master itself waits for Worker"],
        ),
    ],
)
def test_dependencies_are_checked(waits: dict[str, list[Dependency]], messages: list[str]) -> None:
    subject = job("PyTorchJob", Master=1, Worker=1, depends_on=waits)
    errors = list(check_dependencies(subject, field="pytorchReplicaSpecs"))
    assert [error.message for error in errors] == messages
    assert all(error.path.startswith("spec.pytorchReplicaSpecs[") for error in errors)
