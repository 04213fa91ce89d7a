"""Opening an environment in an editor."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.settings import load_settings
from danlu.environments.editors import (
    EditorTarget,
    environment_target,
    format_editor_uri,
    open_editor,
)
from danlu.errors import OutsideError
from danlu.util.paths import Paths

TARGET = EditorTarget("digits.danlu", "/workspace")


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of({"DANLU_HOME": str(tmp_path / "home")})


@pytest.fixture
def environment(paths: Paths) -> EnvironmentDirectory:
    directory = EnvironmentDirectory(paths.environments / "digits")
    directory.directory.mkdir(parents=True)
    spec = EnvironmentSpec("digits", "sha256:1", datetime.now(UTC), project="/home/me/digits")
    directory.write_spec(spec)
    return directory


def install_editor(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = directory / "code"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


def test_the_address_opens_the_project(environment: EnvironmentDirectory, paths: Paths) -> None:
    expected = "vscode://vscode-remote/ssh-remote+digits.danlu/workspace"
    target = environment_target(environment, load_settings(paths))
    assert format_editor_uri(target, "code") == expected
    assert format_editor_uri(target, "cursor").startswith("cursor://vscode-remote/")


def test_the_editor_is_started_with_the_host(
    environment: EnvironmentDirectory,
    paths: Paths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_editor(tmp_path, f'echo "$@" >{tmp_path}/arguments', monkeypatch)
    assert open_editor(environment_target(environment, load_settings(paths)), "code")
    arguments = (tmp_path / "arguments").read_text()
    assert arguments == "--remote ssh-remote+digits.danlu /workspace\n"
    assert (paths.config / "ssh.d/digits.conf").exists()


def test_an_editor_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_editor(tmp_path, "exit 3", monkeypatch)
    with pytest.raises(OutsideError, match="code exited with code 3"):
        open_editor(TARGET, "code")


def test_a_missing_editor_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert not open_editor(TARGET, "code")
