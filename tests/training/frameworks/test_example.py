"""``examples/add-a-framework``: a framework of an external package, or as one of danlu's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import danlu

PACKAGE = Path(danlu.__file__).parent
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "add-a-framework"


@pytest.mark.real
def test_framework_of_an_external_package_runs() -> None:
    program = Path(sys.executable).with_name("danlu")
    result = subprocess.run(
        [str(EXAMPLE / "verify")],
        env={**os.environ, "DANLU": str(program)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("verify: done\n")


def add_to_danlu(tree: Path) -> None:
    """Copy danlu and add the example to it: its module and one line of the registry."""
    shutil.copytree(PACKAGE, tree / "danlu", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(EXAMPLE / "danlu_lightgbm.py", tree / "danlu/training/frameworks/lightgbm.py")
    registry = tree / "danlu/training/registry.py"
    lines = registry.read_text().splitlines(keepends=True)
    lines.insert(lines.index("_MODULES = (\n") + 1, '    "lightgbm",\n')
    registry.write_text("".join(lines))


def test_framework_needs_its_module_and_one_line_of_the_registry(tmp_path: Path) -> None:
    add_to_danlu(tmp_path / "tree")
    script = tmp_path / "meet.py"
    unused = "if False:\n    import lightgbm\n"  # by which the framework is detected
    script.write_text((EXAMPLE / "meet.py").read_text().replace("\nRANK", f"\n{unused}\nRANK", 1))

    def run_danlu(*arguments: str) -> str:
        tree = tmp_path / "tree"
        result = subprocess.run(
            [sys.executable, "-P", "-m", "danlu", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tree), "DANLU_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    output = run_danlu("train", script.name, "--worker", "2", "--host-python", "--name", "meet")
    assert "machine 0 heard of 2" in output
    assert "machine 1 heard of 2" in output
    view = json.loads(run_danlu("jobs", "show", "meet", "--format", "json"))
    assert (view["kind"], view["state"]) == ("LightGBMJob", "Succeeded")
    crds = json.loads(
        run_danlu("operator", "crds", "--enable-scheme", "lightgbm", "--format", "json")
    )
    (version,) = crds["items"][0]["spec"]["versions"]
    assert version["subresources"]["scale"]["specReplicasPath"].endswith(".Worker.replicas")
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert spec["treeLearner"]["enum"] == ["data", "feature", "voting"]
    assert "LightGBMJob" in run_danlu("operator", "--help")
