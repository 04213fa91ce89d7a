"""Scripts for Kubeflow's SDK, from PyPI and unmodified, with danlu's client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.servers import install_packages

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
SCRIPTS = Path(__file__).with_name("scripts")

RUNTIME = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata:
  name: team
  labels: {trainer.kubeflow.org/framework: plain}
spec:
  mlPolicy: {numNodes: 1}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            backoffLimit: 0
            template:
              spec:
                containers:
                - {name: node, image: "example/train:1"}
"""


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_packages(tmp_path_factory.mktemp("sdk"), "kubeflow==0.5.0")


class Account:
    """A user's project and danlu's home, and a Python with the SDK."""

    def __init__(self, directory: Path, packages: Path) -> None:
        self.project = directory / "project"
        self.project.mkdir()
        self.variables = {
            "DANLU_HOME": str(directory / "home"),
            "DANLU_UPKEEP": "off",
            "HOME": str(directory),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(packages),
        }

    def run(self, name: str, *arguments: str, client: str = "TrainerClient()") -> list[str]:
        """Run a script with the import of danlu's client; return the lines of its output."""
        text = (SCRIPTS / name).read_text()
        assert text.count("from kubeflow.trainer import ") == 1
        changed = text.replace("from kubeflow.trainer import ", "from danlu.kubeflow import ")
        script = self.project / name
        script.write_text(changed.replace("TrainerClient()", client))
        result = subprocess.run(
            [sys.executable, name, *arguments],
            cwd=self.project, env=self.variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stdout + result.stderr
        assert script.read_text().replace(client, "TrainerClient()") == changed
        return result.stdout.splitlines()


@pytest.fixture
def account(tmp_path: Path, sdk: Path) -> Account:
    return Account(tmp_path, sdk)


def test_a_function_runs_on_two_nodes(account: Account) -> None:
    (account.project / "notes.py").write_text("TEXT = 'of the project'\n")
    lines = account.run("two_nodes.py")
    printed = [
        [f"node {rank} of 2: step {step}, {{x}}, of the project, a\tb \\ $HOME" for step in (0, 1)]
        for rank in (0, 1)
    ]
    assert lines == [
        "['torch-distributed', 'jax-distributed', 'xgboost-distributed', 'plain-distributed']",
        *printed[0],
        "node-0 Succeeded True cpu 1",
        "node-1 Succeeded True cpu 1",
        *printed[1],
        "TrainJobSucceeded",
        "[]",
    ]
    assert sorted(path.name for path in account.project.glob("*.py")) == [
        "notes.py",
        "two_nodes.py",
    ]


def test_jobs_that_fail_and_calls_that_raise(account: Account) -> None:
    (account.project / "runtime.yaml").write_text(RUNTIME)
    client = "TrainerClient(runtimes=['runtime.yaml'], host_python=True)"
    lines = account.run("endings.py", client=client)
    job = "TrainJob: default/long"
    assert lines == [
        "RuntimeError: TrainJob fails is Failed",
        "Failed ValueError: no data",
        "Failed",
        "Running",
        "started",
        "TimeoutError: Timeout waiting for TrainJob long to reach status: {'Complete'} status",
        f"RuntimeError: Failed to create {job} <- job long already exists and is still running",
        f"RuntimeError: Failed to get {job} <- job 'long' not found",
        f"RuntimeError: Failed to get {job} <- job 'long' not found",
        f"RuntimeError: Failed to delete {job} <- job 'long' not found",
        "RuntimeError: Failed to get Runtime: torchtune (checked both namespaced and cluster scope)"
        " <- Reason: ClusterTrainingRuntime torchtune not found; danlu has torch-distributed,"
        " jax-distributed, xgboost-distributed, plain-distributed",
        "ValueError: BuiltinTrainer is not supported on this machine: danlu has no recipes of"
        " torchtune; pass the training as a CustomTrainer",
    ]
