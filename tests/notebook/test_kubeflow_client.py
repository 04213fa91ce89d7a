"""The example in the README of Kubeflow's SDK, with danlu's client and PyTorch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.notebook.conftest import JupyterEnv
from tests.notebook.notebooks import TORCH, NotebookRunner

IMPORT = "from kubeflow.trainer import TrainerClient, CustomTrainer, TrainJobTemplate\n"


def read_example(environment: Path) -> str:
    """Return the first block of Python in the README, which is in the package's metadata."""
    [metadata] = environment.glob("lib/*/site-packages/kubeflow-*.dist-info/METADATA")
    block = metadata.read_text().partition("```python\n")[2].partition("```")[0]
    assert block.startswith(IMPORT)
    return block


@pytest.mark.notebook
def test_the_example_of_kubeflows_sdk_runs_with_one_changed_line(
    jupyter_env: JupyterEnv, tmp_path: Path
) -> None:
    environment = jupyter_env("torch", TORCH)
    changed = IMPORT.replace("kubeflow.trainer", "danlu.kubeflow")
    (tmp_path / "example.py").write_text(read_example(environment).replace(IMPORT, changed))
    where = NotebookRunner(tmp_path, environment / "bin/python", tmp_path / "home")
    result = subprocess.run(
        [where.python, "example.py"],
        cwd=tmp_path, env=where.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    # Three nodes, and by their CPUs two processes on each.
    assert "WORLD_SIZE: 6" in result.stdout
    assert "RANK: 1\n" in result.stdout
    assert "loss=0.9" in result.stdout
