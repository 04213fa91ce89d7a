"""The listener that serves an environment's SSH connections: who starts it, and when it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from danlu.engine.ssh.keys import SshKeys
from danlu.util.sockets import short_socket_path
from tests.conftest import Danlu
from tests.engine.ssh.conftest import process_commands

pytestmark = [pytest.mark.real, pytest.mark.needs("ssh", "busybox", "root")]


def _find_listeners(home: Path) -> list[int]:
    """Return the processes that serve SSH for the environments of ``home``."""
    results = []
    for pid in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            if b"danlu.engine.ssh.connection_listener" in words and str(home).encode() in words[-2]:
                results.append(int(pid))
    return results


def _wait_for_listeners(home: Path, count: int) -> list[int]:
    pause = threading.Event()
    deadline = time.monotonic() + 60
    while len(listeners := _find_listeners(home)) != count:
        assert time.monotonic() < deadline, listeners
        pause.wait(0.02)
    return listeners


@pytest.fixture
def digits(danlu: Danlu, box_home: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Start an environment; the value starts OpenSSH's client with a command."""
    danlu("up", "--image", "box:1", "-d", "-n", "digits", cwd=tmp_path)
    config = box_home / "config/ssh.d/digits.conf"

    def start(command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["ssh", "-F", str(config), "digits.danlu", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


def test_connections_share_one_listener_that_ends_with_the_environment(
    danlu: Danlu, box_home: Path, tmp_path: Path, digits: Callable[..., subprocess.Popen[bytes]]
) -> None:
    assert _find_listeners(box_home) == []
    together = [digits(f"exit {code}") for code in range(3, 7)]
    for client in together:
        client.communicate(timeout=60)
    assert [client.returncode for client in together] == [3, 4, 5, 6]
    before = _wait_for_listeners(box_home, 1)
    again = digits("exit 7")
    again.communicate(timeout=60)
    assert (again.returncode, _wait_for_listeners(box_home, 1)) == (7, before)
    danlu("stop", "--grace", "0", "digits", cwd=tmp_path)
    _wait_for_listeners(box_home, 0)
    danlu("start", "digits", cwd=tmp_path)
    again = digits("exit 8")
    again.communicate(timeout=60)
    assert again.returncode == 8


def test_killed_listener_ends_no_connection_and_is_replaced(
    box_home: Path, digits: Callable[..., subprocess.Popen[bytes]]
) -> None:
    with digits("echo ready; read line; echo got $line; exit 5") as open_client:
        assert open_client.stdout is not None
        assert open_client.stdout.readline() == b"ready\n"
        parents = [
            pid
            for pid in _find_listeners(box_home)
            if _read_parent_pid(pid) not in _find_listeners(box_home)
        ]
        os.kill(parents[0], signal.SIGKILL)
        with digits("exit 6") as client:
            client.communicate(timeout=60)
        assert client.returncode == 6
        output, _ = open_client.communicate(b"more\n", timeout=60)
    assert (output, open_client.returncode) == (b"got more\n", 5)


def test_killed_stdio_process_ends_the_programs_of_its_connection(
    box_home: Path, digits: Callable[..., subprocess.Popen[bytes]]
) -> None:
    with digits("echo ready; exec sleep 97531") as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        children = Path(f"/proc/{client.pid}/task/{client.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        client.communicate(timeout=60)
    assert client.returncode == 255
    _wait_for_listeners(box_home, 1)
    pause = threading.Event()
    deadline = time.monotonic() + 60
    while [line for line in process_commands() if "sleep 97531" in line]:
        assert time.monotonic() < deadline
        pause.wait(0.02)


def test_listener_closes_connections_that_speak_another_protocol(
    box_home: Path, digits: Callable[..., subprocess.Popen[bytes]]
) -> None:
    with digits("true") as client:
        client.communicate(timeout=60)
    keys = SshKeys(box_home / "environments/digits/ssh")
    for request in (b"danlu-ssh-0\n", b"danlu-ssh-1\n"):  # the latter without streams
        with socket.socket(socket.AF_UNIX) as connection:
            with short_socket_path(keys.server_socket) as name:
                connection.connect(name)
            connection.sendall(request)
            assert connection.recv(1) == b""
    with digits("exit 4") as client:
        client.communicate(timeout=60)
    assert client.returncode == 4


def _read_parent_pid(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
