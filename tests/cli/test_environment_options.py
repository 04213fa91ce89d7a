"""Options of the commands for environments, on the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.util.paths import Paths
from tests.cli.conftest import Cli


@pytest.fixture
def environment(home: Path) -> EnvironmentDirectory:
    """A stopped environment with a service's log; nothing of it was ever started."""
    paths = Paths.of({"DANLU_HOME": str(home)})
    directory = EnvironmentDirectory(paths.environments / "digits")
    directory.directory.mkdir(parents=True)
    directory.write_spec(EnvironmentSpec("digits", "sha256:0", datetime.now(UTC)))
    log = directory.log_file("web")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("listening\n")
    return directory


@pytest.mark.parametrize(
    "words",
    [
        ("--port", "x"),
        ("-p", "8765:80", "-p", "8765:81"),
        ("--ssh-port", "x"),
        ("--cpus", "none"),
        ("--memory", "much"),
        ("--shm-size", "0"),
        ("--gpus", "-1"),
        ("-v", "/does-not-exist:/data"),
        ("-e", "=1"),
        ("-n", "NAME"),
        ("--engine", "docker", "--network", "private"),
        ("--authorized-keys", "keys"),
    ],
)
def test_up_rejects_an_option_before_it_reads_or_builds_anything(
    cli: Cli, home: Path, words: tuple[str, ...]
) -> None:
    # Reading the file is the first thing that a build does.
    Path("build.envd").write_text("invalid\n")
    assert "build.envd:1" in cli("up", "-d").err
    result = cli("up", "-d", *words)
    assert result.code == 2
    assert "build.envd" not in result.err
    assert not (home / "environments").exists()


@pytest.mark.parametrize("words", [("digits", "web"), ("-n", "digits", "web"), ("-n", "digits")])
def test_the_environment_is_an_argument_or_an_option(
    cli: Cli, environment: EnvironmentDirectory, words: tuple[str, ...]
) -> None:
    assert cli("logs", *words).out == "listening\n"


def test_an_environment_that_is_named_twice_is_an_error(
    cli: Cli, environment: EnvironmentDirectory
) -> None:
    result = cli("down", "digits", "-n", "letters")
    assert result.code == 2
    assert "named twice" in result.err
    assert environment.exists()


def test_down_takes_the_name_as_an_option(cli: Cli, environment: EnvironmentDirectory) -> None:
    assert cli("down", "-n", "digits").code == 0
    assert not environment.exists()
