"""The outcome of a job, its condition messages and its first failure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from itertools import permutations
from typing import Any, Final

import pytest

from danlu.training.framework import CountsByType, Verdict
from danlu.training.frameworks.jax import JaxFramework
from danlu.training.types import (
    ConditionType,
    Event,
    FirstFailure,
    Job,
    ReplicaPhase,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)
from tests.training.job_simulation import BEGIN, JobSimulation, job

NEVER, ON_FAILURE = RestartPolicy.NEVER, RestartPolicy.ON_FAILURE
EXIT_CODE = RestartPolicy.EXIT_CODE
CREATED: Final = ConditionType.CREATED
RUNNING: Final = ConditionType.RUNNING
RESTARTING: Final = ConditionType.RESTARTING
SUCCEEDED: Final = ConditionType.SUCCEEDED
FAILED: Final = ConditionType.FAILED


# -- a single, deterministic outcome


def test_outcome_does_not_depend_on_the_order_of_replicas() -> None:
    """Kubeflow iterates a Go map: the outcome is random."""
    for order in permutations(["master-0", "worker-0", "worker-1"]):
        stage = JobSimulation(job("PyTorchJob", Master=1, Worker=2)).start()
        for name in order:
            stage.end(name, 0 if name == "master-0" else 1)
        stage.attempts = dict(sorted(stage.attempts.items(), reverse=order[0] == "master-0"))
        stage.settle()
        assert stage.state() == "Succeeded"


def test_chief_success_and_worker_failure_give_one_outcome() -> None:
    """Kubeflow sets both Succeeded and Failed."""
    stage = JobSimulation(job("TFJob", Chief=1, Worker=1)).start()
    stage.end("chief-0", 0)
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.status.has_condition(SUCCEEDED)
    assert not stage.status.has_condition(FAILED)


def test_worker_0_decides_without_a_chief() -> None:
    stage = JobSimulation(job("TFJob", PS=1, Worker=2)).start()
    stage.end("worker-1", 0)
    stage.settle()
    assert stage.state() == "Running"
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_success_of_worker_0_ends_the_job() -> None:
    stage = JobSimulation(job("TFJob", Worker=2)).start()
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_failure_after_success_changes_nothing() -> None:
    stage = JobSimulation(job("TFJob", Chief=1, Worker=1)).start()
    stage.end("chief-0", 0)
    stage.settle()
    before = stage.status
    stage.end("worker-0", 1)
    stage.wait(5)
    assert stage.settle().status == before


def test_success_after_failure_changes_nothing() -> None:
    stage = JobSimulation(job("TFJob", Chief=1, Worker=1)).start()
    stage.end("worker-0", 1)
    stage.settle()
    stage.end("chief-0", 0)
    stage.settle()
    assert stage.state() == "Failed"
    assert not stage.status.has_condition(SUCCEEDED)


def test_finished_job_creates_no_replicas() -> None:
    stage = JobSimulation(job("JAXJob", Worker=2)).start()
    stage.end("worker-0", 1)
    stage.settle()
    before = stage.status.conditions
    stage.vanish()
    stage.settle()
    assert stage.names() == []
    assert stage.status.conditions == before


def test_finished_job_is_neither_running_nor_restarting() -> None:
    stage = JobSimulation(
        job("JAXJob", ON_FAILURE, Worker=2, run=RunPolicy(backoff_limit=1))
    ).start()
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.status.has_condition(RESTARTING)
    stage.end("worker-1", 1)
    stage.settle()
    assert [
        condition.type for condition in stage.status.conditions if condition.status == "True"
    ] == [
        CREATED,
        FAILED,
    ]


def test_job_is_running_again_after_a_restart() -> None:
    stage = JobSimulation(job("JAXJob", ON_FAILURE, Worker=2)).start()
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.state() == "Restarting"
    stage.wait(1)
    stage.settle()
    stage.run("worker-0")
    stage.settle()
    assert [condition.type for condition in stage.status.conditions] == [CREATED, RUNNING]


# -- the messages of Kubeflow


def condition_message(
    kind: str, type: ConditionType, numbers: Mapping[str, Any], policy: RestartPolicy = NEVER
) -> str:
    """Return the condition's message after the first replica succeeds or the last fails."""
    stage = JobSimulation(job(kind, policy, **numbers)).start()
    first, last = stage.created[0].replica, stage.created[-1].replica
    if type is SUCCEEDED:
        stage.end(str(first), 0)
    elif type is not RUNNING:
        stage.end(str(last), 1)
    stage.settle()
    return stage.condition(type).message


@pytest.mark.parametrize(
    ("kind", "numbers", "message"),
    [
        ("TFJob", {"Chief": 1}, "TFJob ns/n is running."),
        ("PyTorchJob", {"Master": 1, "Worker": 1}, "PyTorchJob n is running."),
        ("PyTorchJob", {"Worker": 1}, "PyTorchJob ns/n is running."),
        ("PaddleJob", {"Master": 1}, "PaddleJob n is running."),
        ("PaddleJob", {"Worker": 1}, "PaddleJob ns/n is running."),
        ("JAXJob", {"Worker": 1}, "JAXJob ns/n is running."),
        ("XGBoostJob", {"Master": 1}, "XGBoostJob n is running."),
        ("MPIJob", {"Launcher": 1}, "MPIJob n is running."),
        ("MXJob", {"Worker": 1}, "MXJob n is running."),
    ],
)
def test_running_message_matches_kubeflow(kind: str, numbers: dict[str, int], message: str) -> None:
    assert condition_message(kind, RUNNING, numbers) == message


@pytest.mark.parametrize(
    ("kind", "numbers", "message"),
    [
        ("TFJob", {"Chief": 1}, "TFJob ns/n successfully completed."),
        ("PyTorchJob", {"Master": 1}, "PyTorchJob n is successfully completed."),
        ("PyTorchJob", {"Worker": 1}, "PyTorchJob ns/n successfully completed."),
        ("JAXJob", {"Worker": 1}, "JAXJob ns/n successfully completed."),
        ("XGBoostJob", {"Master": 1}, "XGBoostJob n is successfully completed."),
        ("MPIJob", {"Launcher": 1}, "MPIJob n is successfully completed."),
        ("MXJob", {"Worker": 1}, "MXJob n is successfully completed."),
    ],
)
def test_success_message_matches_kubeflow(kind: str, numbers: dict[str, int], message: str) -> None:
    assert condition_message(kind, SUCCEEDED, numbers) == message


@pytest.mark.parametrize(
    ("kind", "policy", "numbers", "message"),
    [
        ("TFJob", NEVER, {"PS": 1, "Worker": 2}, "TFJob ns/n has failed because 1 Worker"),
        (
            "PyTorchJob",
            NEVER,
            {"Master": 1, "Worker": 2},
            "PyTorchJob n is failed because 1 Worker",
        ),
        ("MPIJob", NEVER, {"Launcher": 1, "Worker": 1}, "MPIJob n is failed because 1 Worker"),
        ("MPIJob", EXIT_CODE, {"Launcher": 1, "Worker": 1}, "MPIJob n is failed because 1 Worker"),
        ("MXJob", NEVER, {"Worker": 1}, "mxjob n is failed because 1 Worker"),
        ("JAXJob", EXIT_CODE, {"Worker": 2}, 'job "n" is failing because "Worker"'),
        ("TFJob", EXIT_CODE, {"PS": 1, "Worker": 2}, 'job "n" is failing because "Worker"'),
    ],
)
def test_failure_message_matches_kubeflow(
    kind: str, policy: RestartPolicy, numbers: dict[str, int], message: str
) -> None:
    assert condition_message(kind, FAILED, numbers, policy) == f"{message} replica(s) failed."


@pytest.mark.parametrize(
    ("kind", "numbers", "message"),
    [
        ("TFJob", {"Worker": 2}, "job n is restarting because Worker"),
        ("PyTorchJob", {"Worker": 2}, "PyTorchJob n is restarting because 1 Worker"),
        ("XGBoostJob", {"Master": 1, "Worker": 1}, "XGBoostJob n is restarting because 1 Worker"),
        ("MXJob", {"Worker": 2}, "mxjob n is restarting because 1 Worker"),
    ],
)
def test_restarting_message_matches_kubeflow(
    kind: str, numbers: dict[str, int], message: str
) -> None:
    assert (
        condition_message(kind, RESTARTING, numbers, ON_FAILURE) == f"{message} replica(s) failed."
    )


def test_condition_reasons_start_with_the_kind() -> None:
    """Kubeflow's failed MPIJob has the reason MPIJobMPIJobFailed."""
    stage = JobSimulation(job("MPIJob", Launcher=1, Worker=1)).start()
    stage.end("launcher-0", 1)
    stage.settle()
    reasons = [condition.reason for condition in stage.status.conditions]
    assert reasons == ["MPIJobCreated", "MPIJobRunning", "MPIJobFailed"]
    assert stage.condition(CREATED).message == "MPIJob n is created."


def test_evicted_mpi_workers_have_the_reason_evicted() -> None:
    stage = JobSimulation(job("MPIJob", Launcher=1, Worker=3)).start()
    stage.end("worker-1", None, phase=ReplicaPhase.FAILED, reason="Evicted")
    stage.settle()
    failed = stage.condition(FAILED)
    assert (failed.reason, failed.message) == ("MPIJobEvicted", "1/3 workers are evicted")


def test_events_are_recorded_once() -> None:
    stage = JobSimulation(job("PyTorchJob", ON_FAILURE, Master=1, Worker=2)).start()
    stage.end("worker-0", 1)
    stage.end("worker-1", 137)
    stage.settle()
    stage.settle()
    assert stage.events == [
        Event("Normal", "ExitedWithCode", "Pod: ns.n-worker-0 exited with code 1", 1),
        Event("Normal", "ExitedWithCode", "Pod: ns.n-worker-1 exited with code 137", 137),
        Event(
            "Warning",
            "PyTorchJobRestarting",
            "PyTorchJob n is restarting because 2 Worker replica(s) failed.",
        ),
    ]


def test_second_restart_is_recorded_as_an_event() -> None:
    stage = JobSimulation(job("PyTorchJob", ON_FAILURE, Master=1, Worker=2)).start()
    stage.end("worker-0", 1)
    stage.settle()
    condition = stage.condition(RESTARTING)
    stage.end("worker-1", 1)
    stage.wait(0.5)
    stage.settle()
    assert stage.reasons().count("PyTorchJobRestarting") == 2
    assert stage.condition(RESTARTING) == condition


def test_success_is_recorded_as_an_event() -> None:
    stage = JobSimulation(job("PyTorchJob", Master=1)).start()
    stage.end("master-0", 0)
    stage.settle()
    message = "PyTorchJob n is successfully completed."
    assert stage.events[-1] == Event("Normal", "PyTorchJobSucceeded", message)


def test_scalable_kinds_have_a_selector() -> None:
    stage = JobSimulation(job("PyTorchJob", Master=1, Worker=1)).start()
    assert stage.status.replica_statuses[ReplicaType("Worker")].selector == (
        "training.kubeflow.org/job-name=n,"
        "training.kubeflow.org/operator-name=pytorchjob-controller,"
        "training.kubeflow.org/replica-type=worker"
    )
    stage = JobSimulation(job("TFJob", Worker=1)).start()
    assert stage.status.replica_statuses[ReplicaType("Worker")].selector == ""


# -- the first failure


def first_failure(stage: JobSimulation) -> FirstFailure:
    failure = stage.status.first_failure
    assert failure is not None
    return failure


def test_first_failure_is_the_earliest_by_finish_time() -> None:
    stage = JobSimulation(job("JAXJob", Worker=3)).start()
    for name, code, seconds in [("worker-0", 1, 2), ("worker-1", 137, 1), ("worker-2", 1, 3)]:
        stage.end(name, code, finished=BEGIN + timedelta(seconds=seconds))
    stage.change("worker-1", reason="OOMKilled", message="used 5 GiB")
    stage.wait(5)
    stage.settle()
    assert first_failure(stage) == FirstFailure(
        replica=stage.attempt("worker-1").id,
        attempt=0,
        exit_code=137,
        reason="OOMKilled",
        message="used 5 GiB",
        time=BEGIN + timedelta(seconds=1),
    )


def test_earlier_failure_observed_later_becomes_the_first() -> None:
    stage = JobSimulation(job("JAXJob", Worker=2)).start()
    stage.end("worker-0", 1, finished=BEGIN + timedelta(seconds=2))
    stage.wait(3)
    stage.settle()
    conditions = stage.status.conditions
    stage.end("worker-1", 139, finished=BEGIN + timedelta(seconds=1))
    stage.settle()
    assert str(first_failure(stage).replica) == "worker-1"
    assert stage.status.conditions == conditions


def test_first_failure_of_simultaneous_late_failures_has_the_lower_index() -> None:
    for names in (["worker-1", "worker-2"], ["worker-2", "worker-1"]):
        stage = JobSimulation(job("JAXJob", Worker=3)).start()
        stage.end("worker-0", 1, finished=BEGIN + timedelta(seconds=2))
        stage.settle()
        for name in names:
            attempt = stage.attempts.pop(stage.attempt(name).uid)
            stage.attempts[attempt.uid] = attempt
            stage.end(name, 1, finished=BEGIN + timedelta(seconds=1))
        stage.settle()
        assert str(first_failure(stage).replica) == "worker-1"


def test_terminating_replica_is_not_the_first_failure() -> None:
    stage = JobSimulation(job("JAXJob", Worker=2)).start()
    stage.change("worker-1", deleting=True)
    stage.end("worker-1", 143, finished=BEGIN + timedelta(seconds=1))
    stage.end("worker-0", 1, finished=BEGIN + timedelta(seconds=2))
    stage.settle()
    assert stage.state() == "Failed"
    assert str(first_failure(stage).replica) == "worker-0"


def test_replica_stopped_after_the_failure_is_not_the_first_failure() -> None:
    stage = JobSimulation(job("JAXJob", Worker=2)).start()
    stage.end("worker-0", 1)
    stage.settle()
    stage.wait(1)
    stage.end("worker-1", 143)
    stage.settle()
    assert str(first_failure(stage).replica) == "worker-0"


def test_first_failure_of_simultaneous_failures_is_the_deciding_type() -> None:
    for names in (["master-0", "worker-1"], ["worker-1", "master-0"]):
        stage = JobSimulation(job("PyTorchJob", Master=1, Worker=2)).start()
        for name in names:
            stage.end(name, 1)
        stage.settle()
        assert str(first_failure(stage).replica) == "master-0"


def test_restarted_replica_remains_the_first_failure() -> None:
    stage = JobSimulation(
        job("JAXJob", ON_FAILURE, Worker=2, run=RunPolicy(backoff_limit=1))
    ).start()
    stage.end("worker-1", 137)
    stage.settle()
    stage.wait(0.5)
    stage.end("worker-0", 1)  # its peer is gone
    stage.settle()
    assert stage.state() == "Failed"
    assert (str(first_failure(stage).replica), first_failure(stage).attempt) == ("worker-1", 0)


def test_first_failure_is_cleared_after_recovery() -> None:
    stage = JobSimulation(
        job("JAXJob", ON_FAILURE, Worker=2, run=RunPolicy(backoff_limit=1))
    ).start()
    stage.end("worker-1", 137)
    stage.settle()
    stage.wait(1)
    stage.settle()
    assert str(first_failure(stage).replica) == "worker-1"
    stage.run("worker-1")
    stage.settle()
    assert stage.status.first_failure is None
    stage.wait(3600)
    stage.end("worker-0", 1)
    stage.settle()
    assert str(first_failure(stage).replica) == "worker-0"


def test_first_failure_is_kept_until_all_replicas_recover() -> None:
    stage = JobSimulation(
        job("JAXJob", ON_FAILURE, Worker=2, run=RunPolicy(backoff_limit=2))
    ).start()
    stage.end("worker-1", 137)
    stage.settle()
    stage.wait(0.5)
    stage.end("worker-0", 1)
    stage.settle()
    stage.wait(0.5)
    stage.settle()
    stage.run("worker-1")
    stage.settle()
    assert str(first_failure(stage).replica) == "worker-1"


def test_first_failure_has_the_attempt() -> None:
    stage = JobSimulation(
        job("JAXJob", ON_FAILURE, Worker=1, run=RunPolicy(backoff_limit=1))
    ).start()
    for _ in range(2):
        stage.end("worker-0", 1)
        stage.settle()
        stage.wait(1)
        stage.settle()
        if stage.state() != "Failed":
            stage.run()
            stage.settle()
    assert first_failure(stage).attempt == 1


def test_succeeded_job_has_no_first_failure() -> None:
    stage = JobSimulation(job("PyTorchJob", ON_FAILURE, Master=1, Worker=1)).start()
    stage.end("worker-0", 1)
    stage.settle()
    stage.end("master-0", 0)
    stage.settle()
    assert stage.status.first_failure is None


def test_lost_replica_beyond_the_backoff_limit_is_the_first_failure() -> None:
    stage = JobSimulation(
        job("JAXJob", ON_FAILURE, Worker=1, run=RunPolicy(backoff_limit=0))
    ).start()
    stage.vanish("worker-0")
    stage.settle()
    assert (first_failure(stage).reason, first_failure(stage).exit_code) == ("Lost", None)


def test_deadline_sets_no_first_failure() -> None:
    stage = JobSimulation(job("JAXJob", Worker=1, run=RunPolicy(active_deadline_seconds=1))).start()
    stage.wait(1)
    stage.settle()
    stage.end("worker-0", 143, finished=BEGIN)
    stage.settle()
    assert stage.status.first_failure is None


def test_verdict_on_an_unknown_replica_type_is_accepted() -> None:
    stage = JobSimulation(job("JAXJob", Worker=1))
    unknown = ReplicaType("Nobody")
    for condition in (RUNNING, RESTARTING, SUCCEEDED, FAILED):
        verdict = Verdict(condition, unknown)
        stage.framework = FixedVerdictFramework(verdict)
        assert stage.decide().status.has_condition(condition)


class FixedVerdictFramework(JaxFramework):
    """The JAX framework with a fixed verdict."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def evaluate(self, job: Job, counts: CountsByType) -> Verdict:
        """Return the fixed verdict."""
        return self.verdict
