"""Every framework trains on several replicas; the tests check the results.

The examples fail if the loss does not fall or the ranks do not end with the same
parameters; here that they say so is looked for, and that they ran in what danlu built.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT, Danlu

pytestmark = pytest.mark.training

RESULT = re.compile(
    r"result: (?P<ranks>\d+) ranks agree on [0-9a-f]{8,}; "
    r"loss (?P<before>[\d.]+) -> (?P<after>[\d.]+)"
)


@dataclass(frozen=True)
class TrainingCase:
    """A training: an example, the arguments after ``danlu train``, and the expected output."""

    example: str
    arguments: str
    ranks: int = 2
    replicas: int = 2

    def __str__(self) -> str:
        return f"{self.example}: {self.arguments}"


CASES = [
    TrainingCase("pytorch", "train.py --framework pytorch --worker 2 -- --epochs 3"),
    TrainingCase("pytorch", "train.py --framework pytorch --master 1 --worker 1"),
    TrainingCase("pytorch", "-f job.yaml", ranks=4),
    TrainingCase("tensorflow", "train.py --framework tensorflow --worker 2"),
    TrainingCase(
        "tensorflow", "coordinator.py --framework tensorflow --chief 1 --ps 1 --worker 2", 2, 4
    ),
    TrainingCase("tensorflow", "session.py --framework tensorflow --ps 1 --worker 2", 2, 3),
    TrainingCase("tensorflow", "-f job.yaml"),
    TrainingCase("tensorflow", "-f coordinator.yaml", 2, 4),
    TrainingCase("tensorflow", "-f session.yaml", 2, 3),
    TrainingCase("jax", "train.py --framework jax --worker 2"),
    TrainingCase("jax", "-f job.yaml"),
    TrainingCase("xgboost", "train.py --framework xgboost --master 1 --worker 1"),
    TrainingCase("xgboost", "-f job.yaml"),
    TrainingCase("paddle", "train.py --framework paddle --worker 2"),
    TrainingCase("paddle", "-f job.yaml"),
    TrainingCase("mxnet", "train.py --framework mxnet --scheduler 1 --server 1 --worker 2", 2, 4),
    TrainingCase("mxnet", "-f job.yaml", 2, 4),
    TrainingCase("mpi", "train.py --framework mpi --worker 2", 2, 3),
    TrainingCase("mpi", "-f job.yaml", 2, 3),
]


def copy_example(example: str, tmp_path: Path) -> Path:
    """The example's files, as a user would copy them."""
    directory = tmp_path / example
    leave = shutil.ignore_patterns("danlu.lock", "__pycache__", "log")
    shutil.copytree(ROOT / "examples" / example, directory, ignore=leave)
    return directory


@pytest.mark.parametrize(
    "case",
    # Examples train side by side; the cases of one share its environment.
    [
        pytest.param(case, marks=pytest.mark.xdist_group(case.example), id=str(case))
        for case in CASES
    ],
)
def test_the_loss_falls_and_the_ranks_agree(
    case: TrainingCase, danlu: Danlu, tmp_path: Path
) -> None:
    directory = copy_example(case.example, tmp_path)
    danlu("build", "-t", f"registry.example/danlu/{case.example}:1", cwd=directory)
    # Examples train side by side, and the processes of pytest share the home.
    name = f"{case.example}-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
    result = danlu("train", "--name", name, "--replace", *case.arguments.split(), cwd=directory)

    found = RESULT.search(result.stdout)
    assert found, result.stdout + result.stderr
    assert int(found["ranks"]) == case.ranks
    assert float(found["after"]) < float(found["before"]) / 2
    output = json.loads(danlu("jobs", "show", name, "--format", "json", cwd=directory).stdout)
    assert output["state"] == "Succeeded"
    assert len(output["replicas"]) == case.replicas


@pytest.mark.xdist_group("mpi")
def test_a_rank_that_disagrees_fails_the_job(danlu: Danlu, tmp_path: Path) -> None:
    directory = copy_example("mpi", tmp_path)
    script = directory / "train.py"
    spoilt = script.read_text().replace(
        "    found = world.allgather", "    weights[0] += world.rank\n    found = world.allgather"
    )
    script.write_text(spoilt)
    arguments = ("train.py", "--framework", "mpi", "--worker", "2")
    failed = danlu("train", *arguments, cwd=directory, check=False)
    assert failed.returncode == 1
    assert "the ranks disagree" in failed.stdout
    assert not RESULT.search(failed.stdout)


@pytest.mark.xdist_group("mpi")
def test_launchers_find_the_workers_in_both_lists(danlu: Danlu, tmp_path: Path) -> None:
    directory = copy_example("mpi", tmp_path)
    danlu("build", "-t", "registry.example/danlu/mpi:1", cwd=directory)
    document = danlu("train", "--replace", "-f", "job.yaml", cwd=directory)
    assert "hosts: mpi-tumours-worker-0:1 mpi-tumours-worker-1:1" in document.stdout


@pytest.mark.xdist_group("pytorch")
def test_an_example_of_kubeflow_trainer_runs_with_another_image(
    danlu: Danlu, tmp_path: Path
) -> None:
    """examples/yaml/02-runtime-patches.yaml of kubeflow/trainer 8c0f5059bd51."""
    directory = copy_example("pytorch", tmp_path)
    danlu("build", "-t", "registry.example/danlu/pytorch:1", cwd=directory)
    example = ROOT / "tests/training/examples/trainer/02-runtime-patches.yaml"
    image = ("--image", "registry.example/danlu/pytorch:1")
    output = danlu("train", "--replace", "-f", str(example), *image, cwd=directory).stdout
    lines = r"node-(\d) │ ((?:LOCAL_)?RANK: \d|WORLD_SIZE: \d|CUSTOM_VAR: .*)"
    found = sorted(re.findall(lines, output))
    assert found == sorted(
        (str(node), line)
        for node in (0, 1)
        for local in (0, 1)
        for line in (
            f"RANK: {2 * node + local}",
            f"LOCAL_RANK: {local}",
            "WORLD_SIZE: 4",
            "CUSTOM_VAR: custom-value",
        )
    )


@pytest.mark.xdist_group("pytorch")
def test_converted_jobs_train_through_torchrun(danlu: Danlu, tmp_path: Path) -> None:
    directory = copy_example("pytorch", tmp_path)
    danlu("build", "-t", "registry.example/danlu/pytorch:1", cwd=directory)
    dry_run = ("train.py", "--worker", "2", "--name", "script", "--dry-run", "--as", "trainjob")
    for name, ranks, command in (
        ("manifest.yaml", 4, ("convert", "job.yaml")),
        ("script.yaml", 2, ("train", *dry_run)),
    ):
        converted = danlu(*command, cwd=directory, check=False).stdout
        assert "kind: TrainJob" in converted
        (directory / name).write_text(converted)
        # The image of the script has another name only in its manifest.
        result = danlu("train", "--replace", "-f", name, "--env", ".", cwd=directory)
        found = RESULT.search(result.stdout)
        assert found, result.stdout + result.stderr
        assert int(found["ranks"]) == ranks
