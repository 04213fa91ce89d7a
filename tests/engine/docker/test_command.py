"""The command lines of engines: daemons on other machines are refused, and warnings are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.engine.docker.command import DockerCommand
from danlu.engine.docker.daemon_location import require_local_daemon
from danlu.errors import UsageError


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of programs, the only one on ``PATH``."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def write_program(directory: Path, name: str, script: str) -> None:
    program = directory / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    "address",
    [
        "unix:///run/docker.sock",
        "tcp://127.0.0.1:2375",
        "tcp://[::1]:2376",
        "tcp://localhost:2375",
        "ssh://me@localhost",
        "npipe:////./pipe/docker_engine",
    ],
)
def test_daemons_of_this_machine_are_used(programs: Path, address: str) -> None:
    write_program(programs, "docker", f"echo {address}")
    require_local_daemon(DockerCommand("docker"), {})
    require_local_daemon(DockerCommand("docker"), {"DOCKER_HOST": address})


@pytest.mark.parametrize(
    ("address", "shown", "host"),
    [
        ("ssh://me@gpu-box:2222", "ssh://me@gpu-box:2222", "ssh://me@gpu-box`"),
        ("tcp://10.0.0.7:2376", "tcp://10.0.0.7:2376", "ssh://10.0.0.7`"),
        ("https://u:hunter2@box", "https://", "ssh://box`"),
    ],
)
def test_daemons_of_other_machines_are_refused(
    programs: Path, address: str, shown: str, host: str
) -> None:
    write_program(programs, "docker", f"echo {address}")
    for environ in ({}, {"DOCKER_HOST": address}):
        with pytest.raises(UsageError) as raised:
            require_local_daemon(DockerCommand("docker"), environ)
        assert shown in raised.value.message
        assert host in raised.value.hint
        assert "hunter2" not in f"{raised.value.message} {raised.value.hint}"


def test_limits_that_are_not_enforced_are_reported(programs: Path) -> None:
    ignored = "Resource limits are not supported and ignored on cgroups V1 rootless systems"
    write_program(programs, "podman", f"echo other >&2; echo {ignored} >&2; echo id")
    warnings: list[str] = []
    assert DockerCommand("podman").run("create", warnings=warnings) == "id\n"
    assert warnings == [f"podman: {ignored}"]


def test_podman_without_a_service_is_of_this_machine(programs: Path) -> None:
    write_program(programs, "podman", "echo false")
    require_local_daemon(DockerCommand("podman"), {})


def test_a_service_of_podman_on_this_machine_is_refused(programs: Path) -> None:
    script = '[ "$1" = info ] && echo true && exit; echo "true unix:///run/podman/podman.sock"'
    write_program(programs, "podman", script)
    for environ in ({}, {"CONTAINER_HOST": "unix:///run/podman/podman.sock"}):
        with pytest.raises(UsageError, match="uses the service at unix:///run/podman") as raised:
            require_local_daemon(DockerCommand("podman"), environ)
        assert "unset CONTAINER_HOST" in raised.value.hint


def test_podman_that_uses_another_machine_is_refused(programs: Path) -> None:
    script = (
        '[ "$1" = info ] && echo true && exit; echo "false ssh://a"; echo "true ssh://me@b:22/run"'
    )
    write_program(programs, "podman", script)
    with pytest.raises(UsageError, match="ssh://me@b:22/run"):
        require_local_daemon(DockerCommand("podman"), {})
    with pytest.raises(UsageError, match="ssh://other"):
        require_local_daemon(DockerCommand("podman"), {"CONTAINER_HOST": "ssh://other/run"})
