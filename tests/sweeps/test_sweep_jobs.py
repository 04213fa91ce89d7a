"""The job of a trial: where its values go, and how many such jobs fit on a machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from danlu.errors import UsageError
from danlu.jobs.types import Submission
from danlu.sweeps.jobs import build_trial_submission, max_parallel_jobs, variable_name
from danlu.sweeps.space import SweepAxis, parse_axis
from danlu.training.pod_template import find_main_container
from danlu.training.registry import find_framework
from tests.sweeps.sweep_jobs import job, submission

POINT = {"lr": "0.1", "batch-size": "32"}
MORE = ["--lr", "0.1", "--batch-size", "32"]


def build_trial(
    given: Submission, point: Mapping[str, str] = POINT, kind: str = "pytorch"
) -> Submission:
    return build_trial_submission(given, point, framework=find_framework(kind), name="mnist-1")


def main_command(given: Submission, type: str = "Worker", name: str = "pytorch") -> list[str]:
    for replica_type, spec in given.job.replicas.items():
        if replica_type == type:
            main = find_main_container(spec.template, name)
            return [*main.get("command", ()), *main.get("args", ())]
    raise KeyError(type)


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        (["python", "t.py"], [], ["python", "t.py", *MORE]),
        (["python"], ["t.py", "-v"], ["python", "t.py", "-v", *MORE]),
        ([], ["t.py"], ["t.py", *MORE]),
        (["t.py", "--rate={lr}"], [], ["t.py", "--rate=0.1", "--batch-size", "32"]),
        (["t.py", "{lr}", "b={batch-size}", "{x}"], [], ["t.py", "0.1", "b=32", "{x}"]),
        # In a path or another word it is not the program's parameter.
        (["t.py", "--out", "out/{lr}"], [], ["t.py", "--out", "out/0.1", *MORE]),
        (["t.py"], ["--out=o/{lr}-{batch-size}"], ["t.py", "--out=o/0.1-32", *MORE]),
        (["t.py", "{lr}x", "--rate={lr}"], [], ["t.py", "0.1x", "--rate=0.1", *MORE[2:]]),
        (["t.py", "$(DANLU_SWEEP_LR)"], [], ["t.py", "$(DANLU_SWEEP_LR)", *MORE[2:]]),
        (["sh", "-c", "t {lr} {batch-size}"], [], ["sh", "-c", "t 0.1 32"]),
        # The command of the image cannot be extended, but it has the variables.
        ([], [], []),
    ],
)
def test_values_are_appended_or_replace_placeholders(
    command: Sequence[str], args: Sequence[str], expected: Sequence[str]
) -> None:
    assert main_command(build_trial(submission(command=command, args=args))) == list(expected)


def test_values_of_a_parameter_in_braces_are_only_substituted() -> None:
    assert parse_axis("{size}=small,large") == SweepAxis(
        "size", choices=("small", "large"), substituted=True
    )
    trial = build_trial_submission(
        submission(command=["t.py", "--config", "conf/{size}.yaml"]),
        {"size": "small"},
        framework=find_framework("pytorch"),
        name="mnist-1",
        substituted={"size"},
    )
    assert main_command(trial) == ["t.py", "--config", "conf/small.yaml"]
    with pytest.raises(UsageError, match="the command does not use size"):
        build_trial_submission(
            submission(command=["t.py"]),
            {"size": "small"},
            framework=find_framework("pytorch"),
            name="mnist-1",
            substituted={"size"},
        )


def test_placeholders_in_values_are_not_expanded() -> None:
    job_submission = submission(command=["t", "{a}", "{b}"])
    assert main_command(build_trial(job_submission, {"a": "{b}", "b": "{a}"})) == [
        "t",
        "{b}",
        "{a}",
    ]


def test_trial_changes_neither_sidecars_nor_the_given_job() -> None:
    job_submission = submission()
    before = repr(job_submission)
    changed = build_trial(job_submission)
    side = next(iter(changed.job.replicas.values())).template["spec"]["containers"][0]
    assert side == {"name": "side", "command": ["log"]}
    assert repr(job_submission) == before


def test_values_are_set_as_variables_and_labels() -> None:
    changed = build_trial(submission())
    assert changed.environment == {"DANLU_SWEEP_LR": "0.1", "DANLU_SWEEP_BATCH_SIZE": "32"}
    assert changed.labels == {"sweep": "mnist", "sweep.lr": "0.1", "sweep.batch-size": "32"}
    assert changed.job.name == "mnist-1"
    assert variable_name("a.b-c") == "DANLU_SWEEP_A_B_C"


@pytest.mark.parametrize("shell", [["sh", "-c", "python t.py"], ["/bin/bash", "-e", "-c", "t"]])
def test_shell_command_without_a_placeholder_is_an_error(shell: list[str]) -> None:
    with pytest.raises(UsageError, match="the shell command does not use lr") as caught:
        build_trial(submission(command=shell))
    assert caught.value.hint == "insert {lr} or $DANLU_SWEEP_LR where it belongs"


def test_shell_command_with_a_placeholder_only_in_a_path_is_an_error() -> None:
    shell = ["sh", "-c", "python t.py --out 'out/{lr}'"]
    with pytest.raises(UsageError, match="the shell command uses lr only inside another word"):
        build_trial(submission(command=shell), {"lr": "0.1"})
    shell[2] += " --lr {lr}"
    assert main_command(build_trial(submission(command=shell), {"lr": "0.1"}))[2].endswith(
        "--out 'out/0.1' --lr 0.1"
    )


def test_shell_command_that_reads_the_variables_is_unchanged() -> None:
    script = "python t.py --lr $DANLU_SWEEP_LR --batch-size $DANLU_SWEEP_BATCH_SIZE"
    assert main_command(build_trial(submission(command=["sh", "-c", script]))) == [
        "sh",
        "-c",
        script,
    ]


def test_mpi_workers_get_no_arguments() -> None:
    job_submission = submission(
        command=["python", "t.py"],
        kind="MPIJob",
        name="mpi",
        replicas={"Launcher": 1, "Worker": 2},
    )
    changed = build_trial(job_submission, kind="mpi")
    assert main_command(changed, "Launcher", "mpi")[-4:] == MORE
    assert main_command(changed, "Worker", "mpi") == ["python", "t.py"]


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
def test_parallel_jobs_are_limited_by_resources(
    replicas: dict[str, int],
    resources: dict[str, Any] | None,
    machine: dict[str, int],
    expected: int,
) -> None:
    assert max_parallel_jobs(job(replicas=replicas, resources=resources), **machine) == expected


def test_parallel_jobs_default_to_the_cores_of_this_machine() -> None:
    assert max_parallel_jobs(job()) == len(os.sched_getaffinity(0))
