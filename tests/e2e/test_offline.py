"""With a warm store no network is needed, and a second project costs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Project

pytestmark = pytest.mark.real

LINES = ['install.apt_packages(["file"])', 'install.python_packages(name=["six"])', 'run(["true"])']


def without_network(home: Path, directory: Path, *arguments: str) -> str:
    """The program in a network namespace that has not even a loopback interface up."""
    danlu = Path(sys.executable).with_name("danlu")
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "-r"]
    result = subprocess.run(
        [*unshare, str(danlu), *arguments],
        cwd=directory,
        env={**os.environ, "DANLU_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="making a network namespace around it needs root")
def test_a_warm_store_needs_no_network(project: Project, real_home: Path) -> None:
    project.write(*LINES)
    first = project.build()
    without_network(real_home, project.directory, "build", "--offline", "--frozen")
    # Every vertex again from its record, not the whole image from one.
    file = project.directory.parent / "offline.json"
    project.write(*LINES, 'runtime.environ(env={"NEW": "1"})')
    without_network(
        real_home, project.directory, "build", "--offline", "--metadata-file", str(file)
    )
    assert first["image"]["config"] not in file.read_text()
    result = without_network(
        real_home, project.directory, "run", "--", "python", "-c", "print(6*7)"
    )
    assert result.strip() == "42"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="making a network namespace around it needs root")
def test_locked_layers_are_rebuilt_from_the_download_caches(
    project: Project, real_home: Path
) -> None:
    project.write(*LINES)
    project.build()
    without_network(real_home, project.directory, "build", "--offline", "--frozen", "--no-cache")


def test_a_second_project_with_the_same_packages_does_nothing(
    project: Project, tmp_path: Path
) -> None:
    project.write(*LINES)
    first = project.build()
    other = Project(tmp_path / "elsewhere", project.danlu)
    other.directory.mkdir()
    other.write(*LINES)
    second = other.build()
    assert second["image"]["config"] == first["image"]["config"]
    assert all(vertex["cached"] for vertex in second["vertices"])


def test_offline_with_missing_downloads_is_reported(project: Project) -> None:
    project.write('install.python_packages(name=["wheel-that-was-never-here"])')
    failed = project("build", "--offline", check=False)
    assert failed.returncode in (2, 3)
    assert "Traceback" not in failed.stderr
