"""Bytecode is compiled by the image's own Python, into a separate layer for each wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.wheels import make_wheel

pytestmark = pytest.mark.real

#: The store has other images, too, which other tests build meanwhile.
IMAGE = "local/compiled:1"
SITE = "opt/venv/lib/python3.11/site-packages"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("compiled")
    good = {"ns/good/__init__.py": "x = 1\n", "ns/good/deep/m.py": "y = 2\n", "ns/data.txt": ""}
    wheels = [
        make_wheel(project, "good", files=good),
        make_wheel(project, "odd", files={"ns/broken.py": "def (:\n", "ns/fine.py": "z = 3\n"}),
        make_wheel(project, "empty", files={"nothing.txt": ""}),
    ]
    names = ", ".join(f'"{wheel.name}"' for wheel in wheels)
    (project / "build.envd").write_text(
        "def build():\n    base(os='debian12')\n    install.python()\n"
        f"    install.python_packages(local_wheels=[{names}])\n"
    )
    return project


@pytest.fixture
def compile_result(
    danlu: Callable[..., subprocess.CompletedProcess[str]], project: Path, real_home: Path
) -> dict[str, Any]:
    danlu("build", "--tag", IMAGE, cwd=project)
    outcome = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("bytecode_process.py")), IMAGE],
        env={**os.environ, "DANLU_HOME": str(real_home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    result: dict[str, Any] = json.loads(outcome.stdout)
    return result


def test_bytecode_is_one_layer_per_wheel(compile_result: dict[str, Any]) -> None:
    files = {layer["made"].split()[-2]: layer["files"] for layer in compile_result["every"]}
    assert files["good"] == [
        f"{SITE}/ns/good/__pycache__/__init__.cpython-311.pyc",
        f"{SITE}/ns/good/deep/__pycache__/m.cpython-311.pyc",
    ]
    assert files["odd"] == [f"{SITE}/ns/__pycache__/fine.cpython-311.pyc"]
    assert "empty" not in files
    assert all(layer["flags"] == [0] for layer in compile_result["every"]), "timestamps (PEP 552)"
    assert compile_result["known"] == compile_result["every"]


def test_bytecode_does_not_depend_on_other_wheels(compile_result: dict[str, Any]) -> None:
    ids = {layer["diff_id"] for layer in compile_result["every"]}
    assert {layer["diff_id"] for layer in compile_result["one"]} <= ids


def test_all_of_an_image_can_be_one_layer(compile_result: dict[str, Any]) -> None:
    (whole,) = compile_result["whole"]
    assert {name for layer in compile_result["every"] for name in layer["files"]} == set(
        whole["files"]
    )


def test_compiled_bytecode_is_reused(
    compile_result: dict[str, Any],
) -> None:
    assert len(compile_result["key"]) == 64
    # Another test that uses this store may have compiled some before.
    assert all(layer in compile_result["every"] for layer in compile_result["before"])
