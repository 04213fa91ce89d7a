"""A job at a point: where the values go, and how many such jobs fit on a machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from danlu.commands.sweepjob import at_point, fitting, variable
from danlu.errors import UsageError
from danlu.jobs.types import Submission
from danlu.training.frameworks.pods import main_container
from danlu.training.registry import framework_of
from tests.commands.sweeping import job, submission

POINT = {"lr": "0.1", "batch-size": "32"}
MORE = ["--lr", "0.1", "--batch-size", "32"]


def at(given: Submission, point: Mapping[str, str] = POINT, kind: str = "pytorch") -> Submission:
    return at_point(given, point, framework=framework_of(kind), name="mnist-1")


def words(given: Submission, type: str = "Worker", name: str = "pytorch") -> list[str]:
    for one, spec in given.job.replicas.items():
        if one == type:
            main = main_container(spec.template, name)
            return [*main.get("command", ()), *main.get("args", ())]
    raise KeyError(type)


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        (["python", "t.py"], [], ["python", "t.py", *MORE]),
        (["python"], ["t.py", "-v"], ["python", "t.py", "-v", *MORE]),
        ([], ["t.py"], ["t.py", *MORE]),
        (["t.py", "--rate={lr}"], [], ["t.py", "--rate=0.1", "--batch-size", "32"]),
        (["t.py", "{lr}/{batch-size}", "{x}"], [], ["t.py", "0.1/32", "{x}"]),
        (["sh", "-c", "t {lr} {batch-size}"], [], ["sh", "-c", "t 0.1 32"]),
        # The image's own command cannot be added to: it has the variables.
        ([], [], []),
    ],
)
def test_values_follow_the_words_or_take_their_places(
    command: Sequence[str], args: Sequence[str], expected: Sequence[str]
) -> None:
    assert words(at(submission(command=command, args=args))) == list(expected)


def test_a_value_that_looks_like_anothers_place_stays_a_value() -> None:
    given = submission(command=["t", "{a}", "{b}"])
    assert words(at(given, {"a": "{b}", "b": "{a}"})) == ["t", "{b}", "{a}"]


def test_the_other_containers_and_the_job_that_was_given_stay_as_they_were() -> None:
    given = submission()
    before = repr(given)
    changed = at(given)
    side = next(iter(changed.job.replicas.values())).template["spec"]["containers"][0]
    assert side == {"name": "side", "command": ["log"]}
    assert repr(given) == before


def test_values_are_variables_and_labels_as_well() -> None:
    changed = at(submission())
    assert changed.environment == {"DANLU_SWEEP_LR": "0.1", "DANLU_SWEEP_BATCH_SIZE": "32"}
    assert changed.labels == {"sweep": "mnist", "sweep.lr": "0.1", "sweep.batch-size": "32"}
    assert changed.job.name == "mnist-1"
    assert variable("a.b-c") == "DANLU_SWEEP_A_B_C"


@pytest.mark.parametrize("shell", [["sh", "-c", "python t.py"], ["/bin/bash", "-e", "-c", "t"]])
def test_a_shells_script_must_say_where_a_value_belongs(shell: list[str]) -> None:
    with pytest.raises(UsageError, match="where in the shell's command does lr belong") as caught:
        at(submission(command=shell))
    assert caught.value.hint == "write {lr} or $DANLU_SWEEP_LR there"


def test_a_shells_script_that_reads_the_variables_is_left_alone() -> None:
    script = "python t.py --lr $DANLU_SWEEP_LR --batch-size $DANLU_SWEEP_BATCH_SIZE"
    assert words(at(submission(command=["sh", "-c", script]))) == ["sh", "-c", script]


def test_workers_that_wait_for_a_launcher_get_no_arguments() -> None:
    given = submission(
        command=["python", "t.py"],
        kind="MPIJob",
        name="mpi",
        replicas={"Launcher": 1, "Worker": 2},
    )
    changed = at(given, kind="mpi")
    assert words(changed, "Launcher", "mpi")[-4:] == MORE
    assert words(changed, "Worker", "mpi") == ["python", "t.py"]


@pytest.mark.parametrize(
    ("replicas", "resources", "machine", "expected"),
    [
        ({"Worker": 1}, None, {"cores": 8}, 8),
        ({"Master": 1, "Worker": 1}, None, {"cores": 8}, 4),
        ({"Worker": 1}, None, {"cores": 1}, 1),
        ({"Worker": 16}, None, {"cores": 8}, 1),
        ({"Worker": 1}, {"limits": {"cpu": "500m"}}, {"cores": 2}, 4),
        ({"Worker": 2}, {"limits": {"cpu": 4}, "requests": {"cpu": 1}}, {"cores": 8}, 4),
        ({"Worker": 1}, {"limits": {"nvidia.com/gpu": 2}}, {"cores": 64, "gpus": 8}, 4),
        ({"Worker": 1}, {"limits": {"nvidia.com/gpu": 2}}, {"cores": 64, "gpus": 1}, 1),
        ({"Worker": 1}, {"limits": {"memory": "1Gi"}}, {"cores": 3}, 3),
        ({"Worker": 1}, {"requests": {"cpu": 0}}, {"cores": 3}, 3000),
    ],
)
def test_as_many_run_side_by_side_as_fit(
    replicas: dict[str, int],
    resources: dict[str, Any] | None,
    machine: dict[str, int],
    expected: int,
) -> None:
    assert fitting(job(replicas=replicas, resources=resources), **machine) == expected


def test_this_machine_is_counted_where_nothing_else_is_said() -> None:
    assert fitting(job()) == len(os.sched_getaffinity(0))
