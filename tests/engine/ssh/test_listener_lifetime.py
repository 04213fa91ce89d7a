"""The listener of SSH connections ends when it is no longer used."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.ssh import connection_listener
from danlu.engine.ssh.connection_client import ACCEPTED, PROTOCOL
from danlu.engine.ssh.connection_listener import ConnectionListener


@pytest.fixture
def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("server.sock")
        listener.listen()
        yield listener


@pytest.fixture
def supervisor() -> Iterator[int]:
    """A pidfd of a process that runs until the test ends."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        pidfd = os.pidfd_open(process.pid)
        yield pidfd
        os.close(pidfd)


def test_listener_ends_without_connections(
    listening: socket.socket, supervisor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_listener, "_IDLE_SECONDS", 0.0)
    ConnectionListener(EnvironmentDirectory(tmp_path), listening).serve_clients(supervisor)


def test_listener_ends_with_the_supervisor_before_it_serves_another_client(
    listening: socket.socket, tmp_path: Path
) -> None:
    with subprocess.Popen(["true"]) as process:
        pidfd = os.pidfd_open(process.pid)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("server.sock")
        ConnectionListener(EnvironmentDirectory(tmp_path), listening).serve_clients(pidfd)
        os.close(pidfd)
        listening.close()
        with suppress(ConnectionError):
            client.sendall(PROTOCOL + b"\n")
            assert client.recv(len(ACCEPTED)) == b""
