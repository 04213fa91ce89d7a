"""What hosts of a SageMaker job execute for the first one, as processes on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from danlu.replica_runtime import mpi_hosts
from tests.ports import free_port
from tests.waiting import wait_for

FIRST, OTHER, HOST = "127.0.0.2", "127.0.0.3", "127.0.0.1"
PROGRAM = [sys.executable, "-I", str(mpi_hosts.__file__)]


def start(*words: str, **variables: str) -> subprocess.Popen[str]:
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.Popen(
        [*PROGRAM, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def connect(port: int, source: str) -> socket.socket:
    """Return a connection from one address to the host, once it accepts any."""
    found: list[socket.socket] = []

    def is_open() -> bool:
        try:
            found.append(socket.create_connection((HOST, port), 30, source_address=(source, 0)))
        except ConnectionRefusedError:
            return False
        return True

    wait_for(is_open)
    return found[0]


def ask(connection: socket.socket, message: dict[str, Any]) -> dict[str, Any]:
    connection.sendall(json.dumps(message).encode() + b"\n")
    answer: dict[str, Any] = json.loads(connection.makefile().readline())
    return answer


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def host(port: int) -> Iterator[subprocess.Popen[str]]:
    """A host that waits for the first one."""
    with start("wait", str(port), FIRST, GREETING="hello") as process:
        yield process
        process.kill()


def test_commands_of_the_first_host_have_the_variables_of_this_one(
    host: subprocess.Popen[str], port: int
) -> None:
    with connect(port, FIRST) as launcher:
        launcher.sendall(b'{"launcher": true}\n')
        with connect(port, FIRST) as connection:
            assert ask(connection, {"command": 'echo "$GREETING"; exit 3'}) == {"code": 3}
        launcher.sendall(b'{"code": 1}\n')
        out, err = host.communicate()
    # The first host reports the failure.
    assert (host.returncode, out, err) == (0, "hello\n", "")


def test_other_addresses_are_refused(host: subprocess.Popen[str], port: int) -> None:
    with connect(port, OTHER) as connection, pytest.raises((OSError, ValueError)):
        ask(connection, {"command": "echo stolen"})
    with connect(port, FIRST) as launcher:
        launcher.sendall(b'{"launcher": true}\n{"code": 0}\n')
        out, err = host.communicate()
    assert (host.returncode, out) == (0, "")
    assert err == f"warning: refused a connection from {OTHER}: not {FIRST}\n"


@pytest.mark.parametrize("message", [b"", b'{"launcher": true}\n', b'{"launcher": true}\n{}\n'])
def test_host_ends_when_the_first_one_is_lost(
    host: subprocess.Popen[str], port: int, message: bytes
) -> None:
    with connect(port, FIRST) as launcher:
        launcher.sendall(message or b'{"launcher": true}\nnot JSON\n')
    _, err = host.communicate()
    assert host.returncode == 1
    assert err == f"error: lost the connection to host {FIRST}, which runs mpirun\n"


def test_first_host_that_never_answers_is_named(port: int) -> None:
    with start("wait", str(port), FIRST, DANLU_HOST_TIMEOUT="0") as process:
        _, err = process.communicate()
    assert (process.returncode, err) == (1, f"error: host {FIRST} did not start MPI in 0 seconds\n")


def test_host_that_never_answers_is_named(port: int) -> None:
    words = ("launch", str(port), HOST, "true")
    with start(*words, DANLU_HOST_TIMEOUT="0") as process:
        _, err = process.communicate()
    assert process.returncode == 1
    assert err.startswith(f"error: host {HOST} does not wait for MPI: ")


@pytest.mark.parametrize("options", [[], ["-x"], ["-o", "ConnectionAttempts=10", "-p22"]])
def test_agent_takes_options_of_ssh_and_returns_the_exit_code(
    port: int, options: list[str]
) -> None:
    with start("wait", str(port), HOST) as process:
        agent = start("exec", str(port), *options, HOST, "exit", "7;", "echo")
        assert (agent.communicate(), agent.returncode) == (("", ""), 7)
        process.kill()


@pytest.mark.parametrize(("version", "code", "other"), [("mpirun (Open MPI) 5", 5, 0), ("", 1, 1)])
def test_launcher_must_be_that_of_open_mpi(
    port: int, tmp_path: Path, version: str, code: int, other: int
) -> None:
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\n[ $1 = run ] && exit 5\necho '{version}'\n")
    program.chmod(0o755)
    with start("wait", str(port), HOST) as process:
        with start("launch", str(port), HOST, str(program), "run") as launcher:
            _, err = launcher.communicate()
        process.communicate()
    assert (launcher.returncode, process.returncode) == (code, other)
    assert ("is not Open MPI's" in err) == (not version)
