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
class CliResult:
    """The exit code and output of one run of the program."""

    code: int
    out: str
    err: str


Cli = Callable[..., CliResult]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a separate home and an empty working directory."""
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
    """Run the program in this process, so that tests can replace what it calls."""

    def run(*arguments: str) -> CliResult:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return CliResult(code, out, err)

    return run


@pytest.fixture
def program(home: Path) -> Cli:
    """Run the program as users do, in a separate process."""

    def run(*arguments: str, **options: str) -> CliResult:
        result = subprocess.run(
            [sys.executable, "-m", "danlu", *arguments],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
            env={**os.environ, **options},
        )
        return CliResult(result.returncode, result.stdout, result.stderr)

    return run
