from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from danlu.cli.__main__ import main


@dataclass(frozen=True)
class Result:
    """How one run of the program ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for the program, and an empty directory to stand in."""
    monkeypatch.setenv("DANLU_HOME", str(tmp_path / "home"))
    for name in ("DANLU_BUILDER", "DANLU_PROGRESS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return tmp_path / "home"


@pytest.fixture
def cli(home: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run the program in this process, where what it calls can be replaced."""

    def run(*arguments: str) -> Result:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def program(home: Path) -> Cli:
    """Run the program as users do, in a process of its own."""

    def run(*arguments: str, **options: str) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "danlu", *arguments],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
            env={**os.environ, **options},
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run
