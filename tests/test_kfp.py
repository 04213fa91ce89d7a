"""``danlu.kfp``: a training job as a step of Kubeflow Pipelines."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from danlu.api import pipeline_step
from danlu.api.pipeline_step import run_step
from danlu.errors import JobFailed, UsageError
from danlu.submission.options import TrainOptions
from danlu.util.yaml_with_lines import read_yaml
from tests.serving.servers import install_packages

#: Reports as any program can, and writes a model if it is rank 0.
TRAIN = """\
import json, os, ssl, sys, urllib.request

rate = float(sys.argv[2])
url = os.environ["KUBEFLOW_TRAINER_SERVER_URL"]
metrics = [{"name": "loss", "value": str(2 * rate)}, {"name": "bad", "value": "nan"}]
status = {"progressPercentage": 100, "metrics": metrics}
status["lastUpdatedTime"] = "2026-01-01T00:00:00Z"
request = urllib.request.Request(url, json.dumps({"trainerStatus": status}).encode())
token = open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read().strip()
request.add_header("Authorization", "Bearer " + token)
authority = os.environ.get("KUBEFLOW_TRAINER_SERVER_CA_CERT")
context = ssl.create_default_context(cafile=authority) if authority else None
urllib.request.urlopen(request, context=context).close()
if os.environ["RANK"] == "0":
    with open(os.environ["DANLU_MODEL_DIR"] + "/weights", "w") as file:
        file.write(f"{rate} {os.environ.get('SEED')}")
print("trained")
"""

PIPELINE = """\
from kfp import compiler, dsl, local
from danlu.kfp import train_component

train = train_component("example/train-python:1", install_kfp_package=False)


@dsl.component(base_image="python", install_kfp_package=False)
def read(model: dsl.Input[dsl.Model], metrics: dsl.Input[dsl.Metrics], job: str) -> str:
    weights = open(model.path + "/weights").read()
    return f"{job} {weights} {metrics.metadata} {model.metadata['framework']}"


@dsl.pipeline
def digits(rate: float) -> str:
    options = {"framework": "pytorch", "workers": 2, "name": "digits"}
    step = train(program="train.py", args=["--rate", rate], options=options)
    outputs = {name: step.outputs[name] for name in ("model", "metrics", "job")}
    return read(**outputs).output


compiler.Compiler().compile(digits, "digits.yaml")
local.init(local.SubprocessRunner(use_venv=False), pipeline_root="out")
print(digits(rate=0.25).output)
"""


@dataclass
class Artifact:
    """A stand-in for KFP's artifacts, which a step is given."""

    path: str
    uri: str = "s3://bucket/model"
    metadata: dict[str, Any] = field(default_factory=dict)

    def log_metric(self, metric: str, value: float) -> None:
        self.metadata[metric] = value


@dataclass
class Step:
    """A step's outputs below a directory."""

    directory: Path
    model: Artifact
    metrics: Artifact

    def run(self, program: str = "", manifest: str = "", *args: Any, **options: Any) -> str:
        job = self.directory / "outputs" / "job"
        run_step(
            program,
            manifest,
            args,
            options,
            metrics=self.metrics,
            model=self.model,
            job=str(job),
        )
        return job.read_text()


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Step:
    monkeypatch.setenv("DANLU_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("train.py").write_text(TRAIN)
    return Step(tmp_path, Artifact(str(tmp_path / "model")), Artifact(str(tmp_path / "metrics")))


def test_a_step_returns_the_metrics_the_model_and_the_name_of_its_job(step: Step) -> None:
    # Pipelines pass all numbers as floats.
    options = {"framework": "pytorch", "workers": 2.0, "environment": {"SEED": "7"}}
    name = step.run("train.py", "", "--rate", 0.25, **options, name="digits")
    assert name == "digits"
    assert step.metrics.metadata == {"loss": 0.5}
    assert (Path(step.model.path) / "weights").read_text() == "0.25 7"
    assert step.model.metadata == {"job": "digits", "framework": "pytorch"}


def test_a_step_runs_a_manifest(step: Step) -> None:
    container = (
        "{name: pytorch, image: none, command: [sh, -c, 'echo $WORLD_SIZE > $DANLU_MODEL_DIR/n']}"
    )
    replicas = f"{{Worker: {{replicas: 1, template: {{spec: {{containers: [{container}]}}}}}}}}"
    manifest = (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: small}\n"
        f"spec: {{pytorchReplicaSpecs: {replicas}}}\n"
    )
    assert step.run(manifest=manifest, host_python=True) == "small"
    assert (Path(step.model.path) / "n").read_text() == "1\n"


def test_a_step_fails_with_its_job_and_says_why(step: Step) -> None:
    with pytest.raises(JobFailed, match="could not convert string to float"):
        step.run("train.py", "", "--rate", "high", framework="pytorch")
    with pytest.raises(UsageError) as caught:
        step.run("missing.py", framework="pytorch")
    assert "missing.py not found" in str(caught.value)


def test_a_job_on_a_cluster_is_told_the_address_of_the_model(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[TrainOptions] = []

    def submit(options: TrainOptions, *_: object, **__: object) -> None:
        found.append(options)
        raise UsageError("no cluster")

    monkeypatch.setattr(pipeline_step, "run_job", submit)
    with pytest.raises(UsageError, match="no cluster"):
        step.run("train.py", image="example/train:1", on="kubernetes")
    (options,) = found
    assert options.environment == {"DANLU_MODEL_URI": "s3://bucket/model"}
    assert (options.volumes, options.tied) == ((), True)


def test_without_the_sdk_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "kfp", None)
    monkeypatch.delitem(sys.modules, "danlu.kfp", raising=False)
    with pytest.raises(ImportError) as caught:
        importlib.import_module("danlu.kfp")
    (note,) = caught.value.__notes__
    assert "uv pip install" in note


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pipeline_runs_in_the_local_runner_and_compiles(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = install_packages(step.directory / "packages", "kfp==2.17.3")
    monkeypatch.setenv("PYTHONPATH", str(packages))
    Path("pipeline.py").write_text(PIPELINE)
    done = run([sys.executable, "pipeline.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.splitlines()[-1] == "digits 0.25 None {'loss': 0.5} pytorch"
    ((pipeline, _),) = read_yaml(Path("digits.yaml").read_text(), "digits.yaml")
    assert isinstance(pipeline, dict)
    outputs = pipeline["components"]["comp-train"]["outputDefinitions"]
    kinds = {
        name: each["artifactType"]["schemaTitle"] for name, each in outputs["artifacts"].items()
    }
    assert kinds == {"metrics": "system.Metrics", "model": "system.Model"}
    assert outputs["parameters"] == {"job": {"parameterType": "STRING"}}
    container = pipeline["deploymentSpec"]["executors"]["exec-train"]["container"]
    assert container["image"] == "example/train-python:1"
