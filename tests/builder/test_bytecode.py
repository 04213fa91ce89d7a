"""Byte code: by the image's own Python, a layer for each wheel, nothing else in it."""

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
def compiled(
    danlu: Callable[..., subprocess.CompletedProcess[str]], project: Path, real_home: Path
) -> dict[str, Any]:
    danlu("build", cwd=project)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compiling.py"))],
        env={**os.environ, "DANLU_HOME": str(real_home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_bytecode_is_one_layer_per_wheel(compiled: dict[str, Any]) -> None:
    files = {layer["made"].split()[-2]: layer["files"] for layer in compiled["every"]}
    assert files["good"] == [
        f"{SITE}/ns/good/__pycache__/__init__.cpython-311.pyc",
        f"{SITE}/ns/good/deep/__pycache__/m.cpython-311.pyc",
    ]
    assert files["odd"] == [f"{SITE}/ns/__pycache__/fine.cpython-311.pyc"]
    assert "empty" not in files
    assert all(layer["flags"] == [1] for layer in compiled["every"]), "unchecked hash (PEP 552)"
    assert compiled["known"] == compiled["every"]


def test_bytecode_does_not_depend_on_other_wheels(compiled: dict[str, Any]) -> None:
    ids = {layer["diff_id"] for layer in compiled["every"]}
    assert {layer["diff_id"] for layer in compiled["one"]} <= ids


def test_all_of_an_image_can_be_one_layer(compiled: dict[str, Any]) -> None:
    (whole,) = compiled["whole"]
    assert {name for layer in compiled["every"] for name in layer["files"]} == set(whole["files"])


def test_compiled_bytecode_is_reused(
    compiled: dict[str, Any],
) -> None:
    assert len(compiled["key"]) == 64
    # Another test that uses this store may have compiled some before.
    assert all(layer in compiled["every"] for layer in compiled["before"])
