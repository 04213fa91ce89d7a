"""How a job ends, in which words, and which failure is named as the first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import permutations
from typing import Any, Final

import pytest

from danlu.training.framework import Tally, Verdict
from danlu.training.types import (
    ConditionType,
    Event,
    FirstFailure,
    Job,
    Phase,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)
from tests.training.stage import BEGIN, Stage, job

NEVER, ON_FAILURE = RestartPolicy.NEVER, RestartPolicy.ON_FAILURE
EXIT_CODE = RestartPolicy.EXIT_CODE
CREATED: Final = ConditionType.CREATED
RUNNING: Final = ConditionType.RUNNING
RESTARTING: Final = ConditionType.RESTARTING
SUCCEEDED: Final = ConditionType.SUCCEEDED
FAILED: Final = ConditionType.FAILED


# -- one outcome, in one order


def test_master_and_worker_ending_in_one_pass_end_the_job_the_same_way_each_time() -> None:
    """Kubeflow iterates a Go map: the outcome is random."""
    for order in permutations(["master-0", "worker-0", "worker-1"]):
        stage = Stage(job("PyTorchJob", Master=1, Worker=2)).start()
        for name in order:
            stage.end(name, 0 if name == "master-0" else 1)
        stage.there = dict(sorted(stage.there.items(), reverse=order[0] == "master-0"))
        stage.settle()
        assert stage.state() == "Succeeded"


def test_a_chief_that_succeeds_and_a_worker_that_fails_do_not_give_two_outcomes() -> None:
    """Kubeflow sets Succeeded and Failed both."""
    stage = Stage(job("TFJob", Chief=1, Worker=1)).start()
    stage.end("chief-0", 0)
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.status.has(SUCCEEDED)
    assert not stage.status.has(FAILED)


def test_without_a_chief_the_first_worker_decides() -> None:
    stage = Stage(job("TFJob", PS=1, Worker=2)).start()
    stage.end("worker-1", 0)
    stage.settle()
    assert stage.state() == "Running"
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_a_first_worker_that_succeeded_ends_a_job_in_which_others_run() -> None:
    stage = Stage(job("TFJob", Worker=2)).start()
    stage.end("worker-0", 0)
    stage.settle()
    assert stage.state() == "Succeeded"


def test_a_failure_after_success_changes_nothing() -> None:
    stage = Stage(job("TFJob", Chief=1, Worker=1)).start()
    stage.end("chief-0", 0)
    stage.settle()
    before = stage.status
    stage.end("worker-0", 1)
    stage.wait(5)
    assert stage.settle().status == before


def test_a_success_after_failure_changes_nothing() -> None:
    stage = Stage(job("TFJob", Chief=1, Worker=1)).start()
    stage.end("worker-0", 1)
    stage.settle()
    stage.end("chief-0", 0)
    stage.settle()
    assert stage.state() == "Failed"
    assert not stage.status.has(SUCCEEDED)


def test_a_finished_job_makes_nothing_whatever_is_gone() -> None:
    stage = Stage(job("JAXJob", Worker=2)).start()
    stage.end("worker-0", 1)
    stage.settle()
    before = stage.status.conditions
    stage.vanish()
    stage.settle()
    assert stage.names() == []
    assert stage.status.conditions == before


def test_a_finished_job_neither_runs_nor_restarts() -> None:
    stage = Stage(job("JAXJob", ON_FAILURE, Worker=2, run=RunPolicy(backoff_limit=1))).start()
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.status.has(RESTARTING)
    stage.end("worker-1", 1)
    stage.settle()
    assert [one.type for one in stage.status.conditions if one.status == "True"] == [
        CREATED,
        FAILED,
    ]


def test_a_job_runs_again_when_what_restarted_runs() -> None:
    stage = Stage(job("JAXJob", ON_FAILURE, Worker=2)).start()
    stage.end("worker-0", 1)
    stage.settle()
    assert stage.state() == "Restarting"
    stage.wait(1)
    stage.settle()
    stage.run("worker-0")
    stage.settle()
    assert [one.type for one in stage.status.conditions] == [CREATED, RUNNING]


# -- in Kubeflow's words


def said(
    kind: str, type: ConditionType, numbers: Mapping[str, Any], policy: RestartPolicy = NEVER
) -> str:
    """The message of a condition after a job's first replica, or its last, ended so."""
    stage = Stage(job(kind, policy, **numbers)).start()
    first, last = stage.made[0].replica, stage.made[-1].replica
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
def test_running_is_said_as_kubeflow_says_it(
    kind: str, numbers: dict[str, int], message: str
) -> None:
    assert said(kind, RUNNING, numbers) == message


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
def test_success_is_said_as_kubeflow_says_it(
    kind: str, numbers: dict[str, int], message: str
) -> None:
    assert said(kind, SUCCEEDED, numbers) == message


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
def test_failure_is_said_as_kubeflow_says_it(
    kind: str, policy: RestartPolicy, numbers: dict[str, int], message: str
) -> None:
    assert said(kind, FAILED, numbers, policy) == f"{message} replica(s) failed."


@pytest.mark.parametrize(
    ("kind", "numbers", "message"),
    [
        ("TFJob", {"Worker": 2}, "job n is restarting because Worker"),
        ("PyTorchJob", {"Worker": 2}, "PyTorchJob n is restarting because 1 Worker"),
        ("XGBoostJob", {"Master": 1, "Worker": 1}, "XGBoostJob n is restarting because 1 Worker"),
        ("MXJob", {"Worker": 2}, "mxjob n is restarting because 1 Worker"),
    ],
)
def test_restarting_is_said_as_kubeflow_says_it(
    kind: str, numbers: dict[str, int], message: str
) -> None:
    assert said(kind, RESTARTING, numbers, ON_FAILURE) == f"{message} replica(s) failed."


def test_all_reasons_begin_with_the_kind() -> None:
    """Kubeflow's failed MPIJob has the reason MPIJobMPIJobFailed."""
    stage = Stage(job("MPIJob", Launcher=1, Worker=1)).start()
    stage.end("launcher-0", 1)
    stage.settle()
    reasons = [one.reason for one in stage.status.conditions]
    assert reasons == ["MPIJobCreated", "MPIJobRunning", "MPIJobFailed"]
    assert stage.condition(CREATED).message == "MPIJob n is created."


def test_evicted_workers_of_mpi_are_said_to_be_evicted() -> None:
    stage = Stage(job("MPIJob", Launcher=1, Worker=3)).start()
    stage.end("worker-1", None, phase=Phase.FAILED, reason="Evicted")
    stage.settle()
    failed = stage.condition(FAILED)
    assert (failed.reason, failed.message) == ("MPIJobEvicted", "1/3 workers are evicted")


def test_events_are_told_once() -> None:
    stage = Stage(job("PyTorchJob", ON_FAILURE, Master=1, Worker=2)).start()
    stage.end("worker-0", 1)
    stage.end("worker-1", 137)
    stage.settle()
    stage.settle()
    assert stage.events == [
        Event("Normal", "ExitedWithCode", "Pod: ns.n-worker-0 exited with code 1"),
        Event("Normal", "ExitedWithCode", "Pod: ns.n-worker-1 exited with code 137"),
        Event(
            "Warning",
            "PyTorchJobRestarting",
            "PyTorchJob n is restarting because 2 Worker replica(s) failed.",
        ),
    ]


def test_a_second_restart_is_told_too_though_the_condition_stays() -> None:
    stage = Stage(job("PyTorchJob", ON_FAILURE, Master=1, Worker=2)).start()
    stage.end("worker-0", 1)
    stage.settle()
    condition = stage.condition(RESTARTING)
    stage.end("worker-1", 1)
    stage.wait(0.5)
    stage.settle()
    assert stage.reasons().count("PyTorchJobRestarting") == 2
    assert stage.condition(RESTARTING) == condition


def test_the_end_is_told() -> None:
    stage = Stage(job("PyTorchJob", Master=1)).start()
    stage.end("master-0", 0)
    stage.settle()
    message = "PyTorchJob n is successfully completed."
    assert stage.events[-1] == Event("Normal", "PyTorchJobSucceeded", message)


def test_scalable_kinds_say_how_their_replicas_are_selected() -> None:
    stage = Stage(job("PyTorchJob", Master=1, Worker=1)).start()
    assert stage.status.replica_statuses[ReplicaType("Worker")].selector == (
        "training.kubeflow.org/job-name=n,"
        "training.kubeflow.org/operator-name=pytorchjob-controller,"
        "training.kubeflow.org/replica-type=worker"
    )
    stage = Stage(job("TFJob", Worker=1)).start()
    assert stage.status.replica_statuses[ReplicaType("Worker")].selector == ""


# -- the first failure


def first(stage: Stage) -> FirstFailure:
    failure = stage.status.first_failure
    assert failure is not None
    return failure


def test_the_first_failure_is_the_earliest_end_not_the_first_seen() -> None:
    stage = Stage(job("JAXJob", Worker=3)).start()
    for name, code, seconds in [("worker-0", 1, 2), ("worker-1", 137, 1), ("worker-2", 1, 3)]:
        stage.end(name, code, finished=BEGIN + timedelta(seconds=seconds))
    stage.change("worker-1", reason="OOMKilled", message="used 5 GiB")
    stage.wait(5)
    stage.settle()
    assert first(stage) == FirstFailure(
        replica=stage.attempt("worker-1").id,
        attempt=0,
        exit_code=137,
        reason="OOMKilled",
        message="used 5 GiB",
        time=BEGIN + timedelta(seconds=1),
    )


def test_an_earlier_end_that_is_seen_later_becomes_the_first() -> None:
    stage = Stage(job("JAXJob", Worker=2)).start()
    stage.end("worker-0", 1, finished=BEGIN + timedelta(seconds=2))
    stage.wait(3)
    stage.settle()
    conditions = stage.status.conditions
    stage.end("worker-1", 139, finished=BEGIN + timedelta(seconds=1))
    stage.settle()
    assert str(first(stage).replica) == "worker-1"
    assert stage.status.conditions == conditions


def test_of_two_earlier_ends_at_one_time_the_lower_index_is_named() -> None:
    for names in (["worker-1", "worker-2"], ["worker-2", "worker-1"]):
        stage = Stage(job("JAXJob", Worker=3)).start()
        stage.end("worker-0", 1, finished=BEGIN + timedelta(seconds=2))
        stage.settle()
        for name in names:
            one = stage.there.pop(stage.attempt(name).uid)
            stage.there[one.uid] = one
            stage.end(name, 1, finished=BEGIN + timedelta(seconds=1))
        stage.settle()
        assert str(first(stage).replica) == "worker-1"


def test_one_that_was_told_to_end_before_is_not_the_first() -> None:
    stage = Stage(job("JAXJob", Worker=2)).start()
    stage.change("worker-1", deleting=True)
    stage.end("worker-1", 143, finished=BEGIN + timedelta(seconds=1))
    stage.end("worker-0", 1, finished=BEGIN + timedelta(seconds=2))
    stage.settle()
    assert stage.state() == "Failed"
    assert str(first(stage).replica) == "worker-0"


def test_what_ends_because_the_job_failed_is_not_the_first() -> None:
    stage = Stage(job("JAXJob", Worker=2)).start()
    stage.end("worker-0", 1)
    stage.settle()
    stage.wait(1)
    stage.end("worker-1", 143)
    stage.settle()
    assert str(first(stage).replica) == "worker-0"


def test_of_two_that_ended_at_one_time_the_one_that_decides_first_is_named() -> None:
    for names in (["master-0", "worker-1"], ["worker-1", "master-0"]):
        stage = Stage(job("PyTorchJob", Master=1, Worker=2)).start()
        for name in names:
            stage.end(name, 1)
        stage.settle()
        assert str(first(stage).replica) == "master-0"


def test_the_failure_that_began_the_trouble_is_the_first_though_it_was_restarted() -> None:
    stage = Stage(job("JAXJob", ON_FAILURE, Worker=2, run=RunPolicy(backoff_limit=1))).start()
    stage.end("worker-1", 137)
    stage.settle()
    stage.wait(0.5)
    stage.end("worker-0", 1)  # its peer is gone
    stage.settle()
    assert stage.state() == "Failed"
    assert (str(first(stage).replica), first(stage).attempt) == ("worker-1", 0)


def test_a_failure_that_was_overcome_is_forgotten() -> None:
    stage = Stage(job("JAXJob", ON_FAILURE, Worker=2, run=RunPolicy(backoff_limit=1))).start()
    stage.end("worker-1", 137)
    stage.settle()
    stage.wait(1)
    stage.settle()
    assert str(first(stage).replica) == "worker-1"
    stage.run("worker-1")
    stage.settle()
    assert stage.status.first_failure is None
    stage.wait(3600)
    stage.end("worker-0", 1)
    stage.settle()
    assert str(first(stage).replica) == "worker-0"


def test_a_failure_is_not_overcome_while_another_replica_is_not_back() -> None:
    stage = Stage(job("JAXJob", ON_FAILURE, Worker=2, run=RunPolicy(backoff_limit=2))).start()
    stage.end("worker-1", 137)
    stage.settle()
    stage.wait(0.5)
    stage.end("worker-0", 1)
    stage.settle()
    stage.wait(0.5)
    stage.settle()
    stage.run("worker-1")
    stage.settle()
    assert str(first(stage).replica) == "worker-1"


def test_the_attempt_of_the_first_failure_is_named() -> None:
    stage = Stage(job("JAXJob", ON_FAILURE, Worker=1, run=RunPolicy(backoff_limit=1))).start()
    for _ in range(2):
        stage.end("worker-0", 1)
        stage.settle()
        stage.wait(1)
        stage.settle()
        if stage.state() != "Failed":
            stage.run()
            stage.settle()
    assert first(stage).attempt == 1


def test_a_job_that_succeeded_has_no_first_failure() -> None:
    stage = Stage(job("PyTorchJob", ON_FAILURE, Master=1, Worker=1)).start()
    stage.end("worker-0", 1)
    stage.settle()
    stage.end("master-0", 0)
    stage.settle()
    assert stage.status.first_failure is None


def test_a_lost_replica_is_named_when_it_may_not_be_made_again() -> None:
    stage = Stage(job("JAXJob", ON_FAILURE, Worker=1, run=RunPolicy(backoff_limit=0))).start()
    stage.vanish("worker-0")
    stage.settle()
    assert (first(stage).reason, first(stage).exit_code) == ("Lost", None)


def test_a_deadline_names_no_replica_where_none_failed() -> None:
    stage = Stage(job("JAXJob", Worker=1, run=RunPolicy(active_deadline_seconds=1))).start()
    stage.wait(1)
    stage.settle()
    stage.end("worker-0", 143, finished=BEGIN)
    stage.settle()
    assert stage.status.first_failure is None


def test_a_framework_that_blames_a_type_the_job_lacks_breaks_nothing() -> None:
    stage = Stage(job("JAXJob", Worker=1))
    nobody = ReplicaType("Nobody")
    for condition in (RUNNING, RESTARTING, SUCCEEDED, FAILED):
        verdict = Verdict(condition, nobody)
        stage.framework = dataclasses.replace(stage.framework, outcome=always(verdict))
        assert stage.decide().status.has(condition)


def always(verdict: Verdict) -> Callable[[Job, Mapping[ReplicaType, Tally]], Verdict]:
    return lambda job, tallies: verdict
