"""How replica counts decide the outcome of a job, for each framework."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from danlu.training.framework import ReplicaCounts
from danlu.training.registry import find_framework, list_frameworks
from danlu.training.types import ElasticPolicy, ReplicaType
from tests.training.frameworks.topology import job_of

ELASTIC = {"elastic": ElasticPolicy(min_replicas=1, max_replicas=3)}
ALL_WORKERS = {"success": "AllWorkers"}

WAITS = ReplicaCounts(expected=1)
RUNS = ReplicaCounts(expected=1, active=1)
DONE = ReplicaCounts(expected=1, succeeded=1, first_succeeded=True)
FAILED = ReplicaCounts(expected=1, failed=1)
AGAIN = ReplicaCounts(expected=1, restarting=1)
TWO_RUN = ReplicaCounts(expected=2, active=2)
TWO_DONE = ReplicaCounts(expected=2, succeeded=2, first_succeeded=True)
FIRST_DONE = ReplicaCounts(expected=2, active=1, succeeded=1, first_succeeded=True)
LAST_DONE = ReplicaCounts(expected=2, active=1, succeeded=1)
FIRST_DONE_LAST_FAILED = ReplicaCounts(expected=2, succeeded=1, failed=1, first_succeeded=True)
ONE_FAILED = ReplicaCounts(expected=2, active=1, failed=1)
ONE_AGAIN = ReplicaCounts(expected=2, active=1, restarting=1)

State = dict[str, ReplicaCounts]
Row = tuple[str, State, dict[str, Any], str]

# The master decides the outcome.
WITH_MASTER: list[tuple[State, str]] = [
    ({"Master": WAITS, "Worker": TWO_RUN}, ""),
    ({"Master": RUNS, "Worker": WAITS}, "Running Master"),
    ({"Master": RUNS, "Worker": TWO_DONE}, "Running Master"),
    ({"Master": DONE, "Worker": TWO_RUN}, "Succeeded Master"),
    ({"Master": DONE, "Worker": ONE_FAILED}, "Succeeded Master"),
    ({"Master": FAILED, "Worker": TWO_DONE}, "Failed Master"),
    ({"Master": RUNS, "Worker": ONE_FAILED}, "Failed Worker"),
    ({"Master": RUNS, "Worker": ONE_AGAIN}, "Restarting Worker"),
    ({"Master": AGAIN, "Worker": TWO_RUN}, "Restarting Master"),
    ({"Master": AGAIN, "Worker": ONE_FAILED}, "Failed Worker"),
]

# Without a master, all workers decide.
WITHOUT_MASTER: list[tuple[State, str]] = [
    ({"Worker": WAITS}, ""),
    ({"Worker": TWO_RUN}, "Running Worker"),
    ({"Worker": FIRST_DONE}, "Running Worker"),
    ({"Worker": TWO_DONE}, "Succeeded Worker"),
    ({"Worker": ONE_FAILED}, "Failed Worker"),
    ({"Worker": FIRST_DONE_LAST_FAILED}, "Failed Worker"),
    ({"Worker": ONE_AGAIN}, "Restarting Worker"),
]


def with_chief(lead: str) -> list[tuple[State, str]]:
    """Return the rows for a TensorFlow chief, under either of its names."""
    return [
        ({lead: WAITS, "Worker": RUNS}, ""),
        ({lead: RUNS, "Worker": TWO_DONE}, f"Running {lead}"),
        ({lead: DONE, "PS": RUNS, "Worker": TWO_RUN}, f"Succeeded {lead}"),
        ({lead: DONE, "Worker": ONE_FAILED}, f"Succeeded {lead}"),
        ({lead: RUNS, "Worker": ONE_FAILED}, "Failed Worker"),
        ({lead: RUNS, "PS": FAILED, "Worker": TWO_RUN}, "Failed PS"),
        ({lead: RUNS, "PS": AGAIN}, "Restarting PS"),
    ]


def rows(table: list[tuple[State, str]], *names: str) -> list[Row]:
    return [(name, state, {}, expected) for name in names for state, expected in table]


TABLE: list[Row] = [
    *rows(WITH_MASTER, "pytorch", "xgboost", "paddle"),
    *rows(WITHOUT_MASTER, "pytorch", "paddle", "jax"),
    *rows(with_chief("Chief"), "tensorflow"),
    *rows(with_chief("Master"), "tensorflow"),
    # An elastic job succeeds with its first worker.
    ("pytorch", {"Worker": LAST_DONE}, ELASTIC, "Succeeded Worker"),
    ("pytorch", {"Worker": FIRST_DONE_LAST_FAILED}, ELASTIC, "Succeeded Worker"),
    ("pytorch", {"Worker": ONE_FAILED}, ELASTIC, "Failed Worker"),
    ("pytorch", {"Worker": ONE_AGAIN}, ELASTIC, "Restarting Worker"),
    ("pytorch", {"Master": RUNS, "Worker": LAST_DONE}, ELASTIC, "Running Master"),
    ("paddle", {"Worker": LAST_DONE}, ELASTIC, "Running Worker"),
    # TensorFlow without a chief: worker 0 or all workers decide.
    ("tensorflow", {"Worker": FIRST_DONE}, {}, "Succeeded Worker"),
    ("tensorflow", {"Worker": FIRST_DONE_LAST_FAILED}, {}, "Succeeded Worker"),
    ("tensorflow", {"Worker": LAST_DONE}, {}, "Running Worker"),
    ("tensorflow", {"Worker": FIRST_DONE}, ALL_WORKERS, "Running Worker"),
    ("tensorflow", {"Worker": TWO_DONE}, ALL_WORKERS, "Succeeded Worker"),
    ("tensorflow", {"Worker": FIRST_DONE_LAST_FAILED}, ALL_WORKERS, "Failed Worker"),
    ("tensorflow", {"PS": FAILED, "Worker": FIRST_DONE}, {}, "Failed PS"),
    ("tensorflow", {"PS": RUNS, "Worker": WAITS}, {}, ""),
    ("tensorflow", {"Evaluator": FAILED, "Chief": RUNS}, {}, "Failed Evaluator"),
    ("tensorflow", {"Evaluator": FAILED, "Chief": DONE}, {}, "Succeeded Chief"),
    # MPI: the launcher decides, while workers sleep or have failed.
    ("mpi", {"Launcher": WAITS, "Worker": TWO_RUN}, {}, ""),
    ("mpi", {"Launcher": RUNS, "Worker": TWO_RUN}, {}, "Running Launcher"),
    ("mpi", {"Launcher": DONE, "Worker": ONE_FAILED}, {}, "Succeeded Launcher"),
    ("mpi", {"Launcher": FAILED, "Worker": TWO_RUN}, {}, "Failed Launcher"),
    ("mpi", {"Launcher": RUNS, "Worker": ONE_FAILED}, {}, "Failed Worker"),
    ("mpi", {"Launcher": AGAIN, "Worker": TWO_RUN}, {}, "Restarting Launcher"),
    # MXNet: the scheduler decides, else the workers; Kubeflow never ends several workers alone.
    ("mxnet", {"Scheduler": RUNS, "Server": RUNS, "Worker": DONE}, {}, "Running Scheduler"),
    ("mxnet", {"Scheduler": DONE, "Server": RUNS, "Worker": DONE}, {}, "Succeeded Scheduler"),
    ("mxnet", {"Scheduler": RUNS, "Server": FAILED, "Worker": RUNS}, {}, "Failed Server"),
    ("mxnet", {"Scheduler": DONE, "Server": FAILED, "Worker": DONE}, {}, "Succeeded Scheduler"),
    ("mxnet", {"Worker": DONE}, {}, "Succeeded Worker"),
    ("mxnet", {"Worker": FIRST_DONE}, {}, "Running Worker"),
    ("mxnet", {"Worker": TWO_DONE}, {}, "Succeeded Worker"),
    ("mxnet", {"TunerTracker": RUNS, "Tuner": RUNS}, {}, "Running Tuner"),
    ("mxnet", {"TunerTracker": FAILED, "Tuner": RUNS}, {}, "Failed TunerTracker"),
]


def outcome(name: str, state: dict[str, ReplicaCounts], more: dict[str, Any]) -> str:
    framework = find_framework(name)
    job = job_of(framework, {type: tally.expected for type, tally in state.items()}, **more)
    verdict = framework.evaluate(job, {ReplicaType(type): counts for type, counts in state.items()})
    return f"{verdict.condition} {verdict.replica_type}" if verdict else ""


def _case_id(value: object) -> str | None:
    if not isinstance(value, dict):
        return None
    return ",".join(f"{key}:{_format_counts(counts)}" for key, counts in value.items())


def _format_counts(value: object) -> str:
    if not isinstance(value, ReplicaCounts):
        return "given"
    return "".join(
        name[0] * getattr(value, name) for name in ("active", "succeeded", "failed", "restarting")
    )


@pytest.mark.parametrize(("name", "state", "more", "expected"), TABLE, ids=_case_id)
def test_outcome(
    name: str, state: dict[str, ReplicaCounts], more: dict[str, Any], expected: str
) -> None:
    assert outcome(name, state, more) == expected


@pytest.mark.parametrize(("name", "state", "more", "expected"), TABLE, ids=_case_id)
def test_outcome_does_not_depend_on_the_order_of_types(
    name: str, state: dict[str, ReplicaCounts], more: dict[str, Any], expected: str
) -> None:
    for order in itertools.permutations(state.items()):
        assert outcome(name, dict(order), more) == expected


@pytest.mark.parametrize("name", [framework.name for framework in list_frameworks()])
def test_no_observed_replicas_give_no_outcome(name: str) -> None:
    framework = find_framework(name)
    job = job_of(framework, dict.fromkeys(framework.replica_types, 1))
    assert framework.evaluate(job, {}) is None
    waiting = dict.fromkeys(framework.replica_types, ReplicaCounts(expected=1))
    assert framework.evaluate(job, waiting) is None


@pytest.mark.parametrize("name", [framework.name for framework in list_frameworks()])
def test_job_without_replicas_has_no_outcome(name: str) -> None:
    framework = find_framework(name)
    job = job_of(framework, dict.fromkeys(framework.replica_types, 0))
    assert framework.evaluate(job, dict.fromkeys(framework.replica_types, ReplicaCounts())) is None


@pytest.mark.parametrize("name", [framework.name for framework in list_frameworks()])
def test_leader_is_a_replica_of_the_job(name: str) -> None:
    framework = find_framework(name)
    for type in framework.replica_types:
        job = job_of(framework, {type: 1, **dict.fromkeys(framework.required_types, 1)})
        assert framework.leader(job).type in job.replicas
        assert framework.leader(job).index == 0
