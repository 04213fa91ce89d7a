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

from danlu.testing.wheels import make_wheel

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
    names = ", ".join(f'"{one.name}"' for one in wheels)
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


def test_byte_code_is_a_layer_for_each_wheel(compiled: dict[str, Any]) -> None:
    files = {one["made"].split()[-2]: one["files"] for one in compiled["every"]}
    assert files["good"] == [
        f"{SITE}/ns/good/__pycache__/__init__.cpython-311.pyc",
        f"{SITE}/ns/good/deep/__pycache__/m.cpython-311.pyc",
    ]
    assert files["odd"] == [f"{SITE}/ns/__pycache__/fine.cpython-311.pyc"]
    assert "empty" not in files
    assert all(one["flags"] == [1] for one in compiled["every"]), "unchecked hash (PEP 552)"
    assert compiled["known"] == compiled["every"]


def test_byte_code_does_not_depend_on_what_is_compiled_with_it(compiled: dict[str, Any]) -> None:
    ids = {one["diff_id"] for one in compiled["every"]}
    assert {one["diff_id"] for one in compiled["one"]} <= ids


def test_all_of_an_image_can_be_one_layer(compiled: dict[str, Any]) -> None:
    (whole,) = compiled["whole"]
    assert {name for one in compiled["every"] for name in one["files"]} == set(whole["files"])


def test_what_is_compiled_is_found_again(
    compiled: dict[str, Any],
) -> None:
    assert len(compiled["key"]) == 64
    # Another test that uses this store may have compiled some before.
    assert all(one in compiled["every"] for one in compiled["before"])
