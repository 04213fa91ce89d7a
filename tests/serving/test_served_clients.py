"""Clients of other projects from PyPI, unmodified, against the running server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.servers import RunningServer, ServerDirectory, install_packages
from tests.test_repository import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
CLIENTS = Path(__file__).with_name("clients")

MODEL = """
from typing import Annotated
import numpy as np


class Model:
    def load(self, directory):
        pass

    def predict(self, x: Annotated[np.ndarray, "float32", (None, 2)], texts: list) -> dict:
        return {
            "y": 2 * x, "half": x.astype(np.float16), "ids": x.astype(np.int64),
            "texts": [text * 2 for text in texts], "raw": bytes([255, 0]),
        }
"""
EXAMPLE = {"x": [[1.0, 2.0], [3.0, 4.0]], "texts": ["one", "two"]}


@pytest.fixture(scope="module")
def served(
    server_packages: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """The server with gRPC and a model of all kinds of tensors."""
    directory = ServerDirectory(server_packages, tmp_path_factory.mktemp("served") / "predictor")
    directory.write(MODEL, EXAMPLE)
    with directory.start(grpc=True) as server:
        yield server


def run_client(name: str, packages: Path, server: RunningServer) -> str:
    """Run a program of ``clients`` with only ``packages``; return its output."""
    result = subprocess.run(
        [sys.executable, "-S", CLIENTS / name, str(server.port), str(server.grpc_port)],
        env={"PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, (result.stderr, server.lines)
    return result.stdout


def test_triton_clients(served: RunningServer, tmp_path: Path) -> None:
    output = run_client("triton.py", install_packages(tmp_path, "tritonclient[http,grpc]"), served)
    refusals = output.splitlines()
    assert refusals[0] == "tritonclient.http 404 the model here is m"
    assert refusals[2] == "tritonclient.http 400 input 'x' is missing"
    assert refusals[4:] == [
        "tritonclient.grpc StatusCode.NOT_FOUND the model here is m, version 1",
        "tritonclient.grpc StatusCode.NOT_FOUND the model here is m, version 1",
        "tritonclient.grpc StatusCode.INVALID_ARGUMENT input 'x' is missing",
        "tritonclient.grpc StatusCode.INVALID_ARGUMENT the model has no output 'missing'",
    ]


@pytest.mark.slow
def test_kserve_clients(served: RunningServer, tmp_path: Path) -> None:
    run_client("kserve_sdk.py", install_packages(tmp_path, "kserve"), served)


@pytest.mark.slow
def test_mlflow_client(served: RunningServer, tmp_path: Path) -> None:
    packages = install_packages(tmp_path, "mlflow-skinny", "pandas", "scipy")
    run_client("mlflow_scoring.py", packages, served)


@pytest.mark.slow
def test_random_payloads_get_the_answers_of_mlflows_scoring_server(tmp_path: Path) -> None:
    packages = install_packages(
        tmp_path / "packages", "mlflow-skinny==3.17.*", "pandas", "flask", "scikit-learn",
        "xgboost-cpu", "msgspec", "prometheus-client", "anyio",
    )  # fmt: skip
    result = subprocess.run(
        [sys.executable, "-S", CLIENTS / "mlflow_reference.py", "300", tmp_path],
        env={"PYTHONPATH": f"{packages}:{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin"},
        cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    *complaints, totals = result.stdout.splitlines() or [""]
    assert (result.returncode, complaints) == (0, []), (result.stderr[-5000:], complaints)
    outcomes = json.loads(totals)
    # Columns in another order and those that MLflow ignores are answered; what it would change is
    # refused: fractions for whole numbers, texts and booleans for numbers, numbers for texts.
    assert outcomes["same"] > outcomes["refused"] * 4
    assert set(outcomes) == {"same", "both refuse", "refused", "answered"}
