"""``danlu convert`` and ``danlu train --dry-run --as``: what is printed, named and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from danlu.training.document import read_manifest_file
from danlu.training.registry import TRAIN_JOB
from danlu.training.train_job.reader import read_train_job
from danlu.training.types import Job, ReplicaType
from tests.training.manifests import manifest

from .conftest import Cli

NODE = ReplicaType("node")
DRY_RUN = ("train", "train.py", "--name", "demo", "--worker", "2", "--dry-run")


@pytest.fixture(autouse=True)
def files(home: Path) -> None:
    Path("train.py").write_text("import torch\n")
    for kind in ("PyTorchJob", "JAXJob", "TFJob"):
        Path(f"{kind}.json").write_text(json.dumps(manifest(kind)))


def read_text(text: str) -> Job:
    file = read_manifest_file(text, "converted.yaml")
    return read_train_job(file.job, file.runtimes)


def read_command(job: Job) -> Any:
    return job.replicas[NODE].template["spec"]["containers"][0]["command"]


def test_a_script_becomes_a_train_job_that_torchrun_starts(cli: Cli) -> None:
    result = cli(*DRY_RUN, "--as", "trainjob", "--", "--lr", "1")
    assert result.code == 0
    job = read_text(result.out)
    assert (job.kind, job.replica_count(NODE)) == ("TrainJob", 2)
    assert read_command(job) == ["torchrun", "train.py", "--lr", "1"]
    assert job.options["processes"] == 1, "a script is one process"


def test_a_module_and_a_shell_script_are_started_by_torchrun(cli: Cli) -> None:
    Path("pkg.py").write_text("import torch\n")
    Path("train.sh").write_text("python train.py\n")
    options = ("--dry-run", "--as", "trainjob", "--framework", "pytorch")
    module = cli("train", *options, "-m", "pkg")
    assert read_command(read_text(module.out)) == ["torchrun", "-m", "pkg"]
    script = cli("train", *options, "train.sh")
    command = ["torchrun", "--no-python", "bash", "train.sh"]
    assert read_command(read_text(script.out)) == command


@pytest.mark.parametrize(
    ("framework", "runtime"), [("jax", {"jax": {}}), ("xgboost", {"xgboost": {}})]
)
def test_scripts_of_frameworks_with_a_policy_have_losses(
    cli: Cli, framework: str, runtime: dict[str, Any]
) -> None:
    result = cli(*DRY_RUN, "--framework", framework, "--as", "trainjob", "-o", "json")
    assert result.code == 1
    documents = json.loads(result.out)["items"]
    assert documents[0]["spec"]["mlPolicy"].items() >= runtime.items()
    assert "a TrainJob does not set" in result.err


@pytest.mark.parametrize("framework", ["tensorflow", "paddle", "mpi", "mxnet"])
def test_scripts_of_frameworks_without_a_policy_are_refused(cli: Cli, framework: str) -> None:
    result = cli(*DRY_RUN, "--framework", framework, "--as", "trainjob")
    assert (result.code, result.out) == (2, "")
    assert "cannot be written as a TrainJob" in result.err


def test_as_v1_prints_what_a_dry_run_prints(cli: Cli) -> None:
    result = cli(*DRY_RUN, "--as", "v1")
    assert (result.code, result.out) == (0, cli(*DRY_RUN).out)
    assert cli(*DRY_RUN[:-1], "--as", "v1").err.count("--as requires --dry-run") == 1


def test_a_manifest_is_converted_and_its_losses_are_comments_and_warnings(cli: Cli) -> None:
    result = cli("convert", "PyTorchJob.json")
    assert result.code == 1
    job = read_text(result.out)
    assert (job.kind, job.replica_count(NODE), read_command(job)) == ("TrainJob", 3, ["train"])
    for text in (result.out, result.err):
        joined = " ".join(text.replace("#", " ").split())
        assert "a TrainJob does not set MASTER_PORT, MASTER_ADDR, WORLD_SIZE, RANK" in joined
    assert "hint: the warnings" in result.err


def test_a_manifest_that_would_be_another_job_is_refused(cli: Cli) -> None:
    result = cli("convert", "TFJob.json")
    assert (result.code, result.out) == (2, "")
    assert "the TFJob in TFJob.json cannot be written as a TrainJob" in result.err
    assert "spec.tfReplicaSpecs[PS]: a TrainJob has no PS" in result.err


def test_a_converted_manifest_is_converted_back(cli: Cli) -> None:
    Path("converted.yaml").write_text(cli("convert", "JAXJob.json").out)
    runtime, job = Path("converted.yaml").read_text().split("---\n")
    Path("runtime.yaml").write_text(runtime)
    Path("job.yaml").write_text(job)
    result = cli("convert", "--as", "v1", "-o", "json", "job.yaml", "runtime.yaml")
    document = json.loads(result.out)
    assert document["kind"] == "JAXJob"
    assert document["spec"]["jaxReplicaSpecs"]["Worker"]["replicas"] == 2


def test_the_objects_of_a_file_are_kept_and_others_are_named(cli: Cli) -> None:
    documents: list[dict[str, Any]] = [
        manifest("JAXJob"),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}},
    ]
    Path("all.yaml").write_text("\n---\n".join(map(json.dumps, documents)))
    result = cli("convert", "all.yaml")
    assert read_manifest_file(result.out, "again").objects.keys() == {"ConfigMap/settings"}
    assert "left out, apply them from all.yaml: PersistentVolumeClaim/data" in result.err


def test_an_mpi_job_of_another_version_has_no_v1(cli: Cli) -> None:
    document = manifest("MPIJob") | {"apiVersion": "kubeflow.org/v2beta1"}
    Path("mpi.json").write_text(json.dumps(document))
    result = cli("convert", "--as", "v1", "mpi.json")
    assert (result.code, result.out) == (2, "")
    assert "kubeflow.org/v2beta1 cannot be written as kubeflow.org/v1" in result.err
    assert TRAIN_JOB.kind in cli("convert", "mpi.json").err
