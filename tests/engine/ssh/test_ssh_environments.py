"""SSH into a real environment: isolation, rejected users, and danlu's commands."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.ssh.keys import SshKeys
from tests.conftest import Danlu
from tests.engine.ssh.conftest import SshHost
from tests.engine.ssh.test_openssh import echo_server, forward_port, run_sftp, send_and_receive
from tests.ports import free_port

pytestmark = [pytest.mark.real, pytest.mark.needs("ssh", "sftp", "busybox", "root")]

NOBODY = 65534

SERVER = """
import os, socket, sys, threading
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
print("listeningOn==", listener.getsockname()[1], "==", flush=True)
while True:
    connection, _ = listener.accept()
    threading.Thread(target=lambda c=connection: (c.sendall(c.recv(100)), c.close())).start()
"""


#: Exits with 13, EACCES, if a file or socket cannot be opened.
OPEN_PATH = """
import socket, sys
path = sys.argv[1]
try:
    socket.socket(socket.AF_UNIX).connect(path) if path.endswith(".sock") else open(path)
except PermissionError:
    sys.exit(13)
"""


@pytest.fixture
def inside(environment: EnvironmentDirectory) -> SshHost:
    """The host of a real environment."""
    home = environment.directory.parents[1]
    config = home / "config" / "ssh.d" / "digits.conf"
    return SshHost(config, SshKeys(environment.directory / "ssh"), "digits.danlu", str(home))


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory of this machine that the environment does not have."""
    with tempfile.TemporaryDirectory(prefix="danlu-outside-", dir="/var/tmp") as directory:
        (Path(directory) / "secret").write_text("outside")
        yield Path(directory)


def test_sftp_sees_and_changes_files_of_the_environment_only(
    inside: SshHost, outside: Path, tmp_path: Path
) -> None:
    inside.run(inside.name, f"ln -s ../../../../../..{outside} /way-out; echo inside >/own")
    result = run_sftp(
        inside,
        f"-get {outside}/secret {tmp_path}/first",
        f"-get /way-out/secret {tmp_path}/second",
        f"-get /../../..{outside}/secret {tmp_path}/third",
        f"-put /etc/hostname {outside}/written",
        f"-get /proc/1/root{outside}/secret {tmp_path}/fourth",
        f"get /own {tmp_path}/own",
    )
    assert result.returncode == 0, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_unix_sockets_are_those_of_the_environment(
    inside: SshHost, outside: Path, tmp_path: Path
) -> None:
    path = str(outside / "socket")
    with (
        echo_server(path),
        forward_port(inside, "-L", f"{tmp_path}/local:{path}"),
        socket.socket(socket.AF_UNIX) as connection,
    ):
        connection.connect(str(tmp_path / "local"))
        assert connection.recv(1) == b""
    refused = inside.run(
        "-oExitOnForwardFailure=yes",
        f"-R{outside}/made:{path}",
        "-N",
        inside.name,
        check=False,
    )
    assert b"forwarding failed" in refused.stderr
    assert not (outside / "made").exists()


def test_connection_opens_no_listener(inside: SshHost) -> None:
    client = inside.start(inside.name, "echo ready; cat")
    assert client.stdout is not None
    with client:
        assert client.stdout.readline() == b"ready\n"
        # Other tests listen at the same time: only the server's own sockets count.
        pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_server_of(pid, inside)]
        assert pids
        sockets = {link for pid in pids for link in _read_sockets(pid)}
        listening = {
            line.split()[9]
            for name in ("tcp", "tcp6")
            for line in Path("/proc/net", name).read_text().splitlines()
            if " 0A " in line
        }
        assert not sockets & listening
        client.kill()


def _is_server_of(pid: str, host: SshHost) -> bool:
    """Return whether a process is the server of ``host``."""
    try:
        command, environ = (
            Path("/proc", pid, name).read_bytes() for name in ("cmdline", "environ")
        )
    except OSError:
        return False
    words = (b"--stdio", b"danlu.engine.ssh.connection_listener")
    return any(word in command for word in words) and host.server_words.encode() in environ


def _read_sockets(pid: str) -> set[str]:
    result = set()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{descriptor}"))
        if match:
            result.add(match[1])
    return result


def test_another_user_can_neither_read_keys_nor_connect(
    environment: EnvironmentDirectory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Even where the directories above are open to all."""
    base = tmp_path_factory.getbasetemp()
    opened = [base, base.parent, base.parent.parent, environment.directory.parents[1]]
    before = [(path, path.stat().st_mode) for path in opened if path != Path("/tmp")]
    for path, _ in before:
        path.chmod(0o755)
    try:
        for name in ("ssh/client_key", "ssh/host_key", "ssh/known_hosts", "control.sock"):
            path = environment.directory / name
            assert path.exists()
            result = subprocess.run(
                ["/usr/bin/python3", "-c", OPEN_PATH, str(path)], user=NOBODY, group=NOBODY
            )
            assert result.returncode == 13, name
    finally:
        for path, mode in before:
            path.chmod(mode & 0o7777)


def test_server_started_by_a_script_is_reached_as_vs_code_does(inside: SshHost) -> None:
    """A script on stdin starts a server, prints its port, and the client connects through -D."""
    port = free_port()
    client = inside.start("-T", "-oClearAllForwardings=no", "-D", f"127.0.0.1:{port}", inside.name)
    assert client.stdin is not None
    assert client.stdout is not None
    with client:
        client.stdin.write(f"python3 -c '{SERVER}' </dev/null & server=$!\n".encode())
        client.stdin.write(b"echo started\n")
        client.stdin.flush()
        number = 0
        while not number:
            line = client.stdout.readline()
            assert line
            if match := re.match(rb"listeningOn== (\d+) ==", line):
                number = int(match[1])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"\x05\x01\x00")
            assert connection.recv(2) == b"\x05\x00"
            address = b"\x03\x09localhost" + number.to_bytes(2, "big")
            connection.sendall(b"\x05\x01\x00" + address)
            assert connection.recv(10)[1] == 0
            assert send_and_receive(connection, b"hello") == b"hello"
        client.stdin.write(b"kill $server; exit 6\n")
        client.stdin.close()
        assert client.wait(60) == 6


def test_up_and_down_leave_one_include_and_no_host(
    danlu: Danlu, box_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ssh" / "config"
    file.parent.mkdir()
    file.write_text("Host mine\n  User me\n")
    monkeypatch.setenv("DANLU_SSH_CONFIG", str(file))
    for _ in range(2):
        danlu("up", "--image", "box:1", "-d", "-n", "digits", cwd=tmp_path)
        output = subprocess.run(
            ["ssh", "-F", str(file), "digits.danlu", "exit 9"], capture_output=True, check=False
        )
        assert output.returncode == 9, output.stderr
        danlu("down", "--grace", "0", "digits", cwd=tmp_path)
    include = f"Include {box_home}/config/ssh.d/*.conf"
    assert file.read_text() == f"# Environments of danlu\n{include}\n\nHost mine\n  User me\n"
    assert list((box_home / "config" / "ssh.d").glob("*.conf")) == []


def test_stopped_environment_is_not_started_for_a_program(
    danlu: Danlu, box_home: Path, tmp_path: Path
) -> None:
    danlu("up", "--image", "box:1", "-d", "-n", "digits", cwd=tmp_path)
    assert danlu("ssh", "digits", "exit 3", cwd=tmp_path, check=False).returncode == 3
    danlu("stop", "--grace", "0", "digits", cwd=tmp_path)
    config = danlu("ssh-config", "digits", cwd=tmp_path).stdout
    (tmp_path / "config").write_text(config)
    for command in (
        [str(Path(sys.executable).with_name("danlu")), "ssh", "digits", "true"],
        ["ssh", "-F", str(tmp_path / "config"), "digits.danlu", "true"],
    ):
        result = subprocess.run(
            command,
            capture_output=True,
            env={**os.environ, "DANLU_HOME": str(box_home)},
            check=False,
        )
        assert result.returncode != 0
        assert b"danlu start digits" in result.stderr
    log = box_home / "environments" / "digits" / "ssh" / "transport.log"
    assert "environment digits is not running" in log.read_text()
    assert danlu("ps", "-q", cwd=tmp_path).stdout.split() == ["digits"]


def test_unknown_environment_is_named(danlu: Danlu, tmp_path: Path) -> None:
    for arguments, code in (
        (["ssh", "nosuch"], 125),  # its exit codes are those of the program there
        (["ssh", "--stdio", "nosuch"], 125),
        (["ssh-config", "nosuch"], 2),
    ):
        result = danlu(*arguments, cwd=tmp_path, check=False)
        assert (result.returncode, "environment nosuch not found" in result.stderr) == (code, True)
        assert result.stdout == ""


def test_sftp_without_python_in_the_image_is_reported(
    danlu: Danlu, box_home: Path, tmp_path: Path
) -> None:
    danlu("up", "--image", "box:1", "-d", "-n", "digits", cwd=tmp_path)
    result = subprocess.run(
        ["sftp", "-F", str(box_home / "config/ssh.d/digits.conf"), "-b", "-", "digits.danlu"],
        input="ls\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "sftp needs openssh-sftp-server or python3" in result.stderr
