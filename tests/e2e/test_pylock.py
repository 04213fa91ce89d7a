"""A lock that is exported to other tools and imported again stays the same."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from danlu.sources.pypi.uv import find_uv
from tests.e2e.conftest import Project
from tests.fakes.wheels import make_wheel

pytestmark = pytest.mark.real


def packages(project: Project) -> list[dict[str, Any]]:
    table = tomllib.loads((project.directory / "danlu.lock").read_text())
    results: list[dict[str, Any]] = table["function"]["build"]["packages"]
    return results


def uv_would_install(pylock: Path, scratch: Path) -> str:
    target = ["--python-version", "3.11", "--target", str(scratch)]
    result = subprocess.run(
        [str(find_uv()), "pip", "install", "--dry-run", *target, "-r", str(pylock)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stderr


def test_an_exported_lock_is_taken_by_uv_and_by_danlu(project: Project, tmp_path: Path) -> None:
    wheel = make_wheel(project.directory / "wheels", "made-here", files={"made.py": "HERE = 1"})
    local = f'local_wheels=["wheels/{wheel.name}"]'
    project.write(f'install.python_packages(name=["six", "colorama"], {local})')
    (project.directory / "out").mkdir()
    project("lock", "--export", "out/pylock.toml")
    locked = packages(project)
    pylock = project.directory / "out" / "pylock.toml"
    accepted = uv_would_install(pylock, tmp_path / "target")
    assert all(package["name"] in accepted for package in locked)

    output = project("lock", "--export", "-").stdout
    assert output == pylock.read_text().replace("../wheels", "wheels")

    project.write('install.python_packages(requirements="out/pylock.toml")')
    project("lock")
    assert packages(project) == locked
    assert project.run("python", "-c", "import made, six; print(made.HERE)") == "1"
