"""OpenSSH's own clients with the server: real processes, terminals, files and sockets."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from danlu.engine.ssh.keys import SshKeys
from tests.engine.ssh.conftest import SshHost, process_commands
from tests.ports import free_port

pytestmark = [pytest.mark.real, pytest.mark.needs("ssh", "sftp", "scp")]

LARGE = 64 << 20
LIMIT = 60.0


def test_command_gets_input_and_returns_its_output_and_exit_code(host: SshHost) -> None:
    result = host.run(host.name, "cat; echo problem >&2; exit 7", input=b"\0\xff\r\n", check=False)
    assert (result.returncode, result.stdout) == (7, b"\0\xff\r\n")
    assert b"problem" in result.stderr


def test_program_killed_by_a_signal_exits_as_in_shells(host: SshHost) -> None:
    assert host.run(host.name, "kill -TERM $$", check=False).returncode == 128 + signal.SIGTERM


def test_large_output_then_exit_is_complete(host: SshHost) -> None:
    result = host.run(host.name, f"head -c {LARGE} /dev/zero | tr '\\0' x; exit 3", check=False)
    assert result.returncode == 3
    assert hashlib.sha256(result.stdout).digest() == hashlib.sha256(b"x" * LARGE).digest()


def test_large_input_is_complete_with_a_slow_reader(host: SshHost) -> None:
    data = os.urandom(1 << 20) * 16
    # Reads nothing before the first megabytes wait in the client.
    result = host.run(host.name, "sleep 0.3; sha256sum", input=data)
    assert result.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_output_of_a_program_that_ignores_its_input_is_complete(host: SshHost) -> None:
    result = host.run(host.name, "echo done", input=b"x" * (4 << 20))
    assert result.stdout == b"done\n"


def test_only_listed_variables_reach_the_program(host: SshHost) -> None:
    names = ("LC_TIME", "LD_PRELOAD", "VSCODE_TEST", "BASH_ENV", "PATH")
    option = "-oSetEnv=" + " ".join(f"{name}=sent" for name in names)
    output = host.run(option, host.name, "env").stdout.decode().splitlines()
    assert {name for name in names if f"{name}=sent" in output} == {"LC_TIME", "VSCODE_TEST"}


@contextmanager
def open_terminal(host: SshHost, *arguments: str) -> Iterator[tuple[int, int]]:
    """Run ssh in a new terminal; yields its process and the other end of the terminal."""
    master, slave = os.openpty()
    set_size(master, 24, 80)
    client = subprocess.Popen(
        host.command("-tt", *arguments),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    with client:
        try:
            yield client.pid, master
        finally:
            client.kill()
            os.close(master)


def set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_until(master: int, pattern: bytes) -> bytes:
    """Return a terminal's output up to a match."""
    output = b""
    while not re.search(pattern, output):
        assert select.select([master], [], [], LIMIT)[0], output
        output += os.read(master, 4096)
    return output


def test_shell_has_a_terminal_that_follows_the_size_of_the_clients(host: SshHost) -> None:
    with open_terminal(host, host.name) as (pid, master):
        read_until(master, rb"[$#] ")
        os.write(master, b"tty; stty size; echo [$TERM]\n")
        # runc makes our terminal raw only after the first output may have been copied to it.
        read_until(master, rb"/dev/pts/\d+\r+\n24 80\r+\n\[\w*\]")
        set_size(master, 33, 99)
        os.kill(pid, signal.SIGWINCH)
        os.write(master, b"while :; do [ \"$(stty size)\" = '33 99' ] && echo follows; done\n")
        read_until(master, rb"\nfollows")
        os.write(master, b"\x03")
        os.write(master, b"exit 5\n")
        read_until(master, b"closed|exit")


def test_interrupt_key_reaches_the_program_of_a_terminal(host: SshHost) -> None:
    script = "trap 'echo interrupted; exit 4' INT; echo ready; while :; do sleep 0.1; done"
    with open_terminal(host, host.name, script) as (_, master):
        read_until(master, b"ready")
        os.write(master, b"\x03")
        read_until(master, b"interrupted")


def test_last_output_of_a_terminal_is_complete(host: SshHost) -> None:
    result = host.run("-tt", host.name, "seq 1 200000", check=False)
    assert result.stdout.split()[-1] == b"200000"
    assert len(result.stdout.split()) == 200000


@pytest.fixture
def large_file(tmp_path: Path) -> Path:
    path = tmp_path / "large file"
    path.write_bytes(os.urandom(1 << 20) * 64)
    return path


def run_sftp(host: SshHost, *lines: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        host.command("-b", "-", host.name, program="sftp"),
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )


def test_sftp_copies_both_ways_with_equal_content(
    host: SshHost, large_file: Path, tmp_path: Path
) -> None:
    existing, back = tmp_path / "there", tmp_path / "back"
    result = run_sftp(host, f'put -f "{large_file}" {existing}', f"get {existing} {back}")
    assert result.returncode == 0, result.stderr
    assert existing.read_bytes() == large_file.read_bytes()
    assert back.read_bytes() == large_file.read_bytes()


def test_sftp_changes_files_as_requested(host: SshHost, tmp_path: Path) -> None:
    (tmp_path / "first").write_text("one")
    result = run_sftp(
        host,
        f"cd {tmp_path}",
        "mkdir new",
        "chmod 600 first",
        "ln -s first link",
        "rename first new/second",
        "ln new/second hard",
        "ls -la",
        "df",
        "rm link",
        "-get missing",
        "-rename hard new/second",
    )
    assert result.returncode == 0, result.stderr
    assert "first" in result.stdout
    assert "not found" in result.stderr
    assert sorted(
        path.name for path in tmp_path.iterdir() if path.name not in {"keys", "config"}
    ) in (
        ["hard", "new"],
        ["new"],
    )
    second = tmp_path / "new" / "second"
    assert (second.read_text(), second.stat().st_mode & 0o777) == ("one", 0o600)


def test_scp_copies_a_tree(host: SshHost, tmp_path: Path) -> None:
    tree = tmp_path / "tree" / "below"
    tree.mkdir(parents=True)
    (tree / "file").write_text("content")
    (tree / "empty").touch()
    copied = subprocess.run(
        host.command("-rp", str(tmp_path / "tree"), f"{host.name}:{tmp_path}/copy", program="scp"),
        capture_output=True,
        check=False,
    )
    assert copied.returncode == 0, copied.stderr
    assert (tmp_path / "copy/below/file").read_text() == "content"


def run_scp(host: SshHost, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Copy with the protocol that was the default before OpenSSH 9."""
    return subprocess.run(
        host.command("-O", *arguments, program="scp"), capture_output=True, text=True, check=False
    )


def list_tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time and content of all below a directory, and of itself."""
    return {
        path.relative_to(root).as_posix(): (
            path.stat().st_mode,
            int(path.stat().st_mtime),
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (root, *root.rglob("*"))
    }


def test_legacy_scp_copies_trees_with_modes_and_times(host: SshHost, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "below" / "empty").mkdir(parents=True)
    (tree / "large").write_bytes(os.urandom(3 << 20))
    (tree / "below" / "a 'quoted' name").write_text("x")
    (tree / "none").touch()
    for mode, name in ((0o640, "large"), (0o755, "none"), (0o700, "below/empty")):
        (tree / name).chmod(mode)
    for path in (*tree.rglob("*"), tree):
        os.utime(path, (1_000_000_000, 1_100_000_000))
    before = list_tree(tree)
    assert run_scp(host, "-rp", str(tree), f"{host.name}:{tmp_path}/there").stderr == ""
    assert list_tree(tmp_path / "there") == before
    assert run_scp(host, "-rp", f"{host.name}:{tmp_path}/there", f"{tmp_path}/back").stderr == ""
    assert list_tree(tmp_path / "back") == before


def test_legacy_scp_copies_files_that_the_shell_names(host: SshHost, tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    for name in ("a.txt", "b.txt", "c.csv"):
        (here / name).write_text(name)
    (there / "a.txt").write_text("longer than its replacement")
    sent = run_scp(host, f"{here}/a.txt", f"{here}/b.txt", f"{here}/c.csv", f"{host.name}:{there}")
    assert (sent.returncode, sent.stderr) == (0, "")
    assert (there / "a.txt").read_text() == "a.txt"
    (here / "new").mkdir()
    assert run_scp(host, f"{host.name}:{there}/*.txt", str(here / "new")).returncode == 0
    assert sorted(path.name for path in (here / "new").iterdir()) == ["a.txt", "b.txt"]


def test_legacy_scp_reports_what_cannot_be_copied(host: SshHost, tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "below").mkdir(parents=True)
    here.mkdir()
    (there / "good").write_text("good")
    (there / "link").symlink_to("nowhere")
    missing = run_scp(host, f"{host.name}:{there}/missing", f"{host.name}:{there}/good", str(here))
    assert missing.returncode == 1
    assert "missing: No such file or directory" in missing.stderr
    assert (here / "good").read_text() == "good"  # the others are copied all the same
    directory = run_scp(host, f"{host.name}:{there}", str(here))
    assert (directory.returncode, "not a regular file" in directory.stderr) == (1, True)
    tree = run_scp(host, "-r", f"{host.name}:{there}", str(here))
    assert (tree.returncode, "link: No such file or directory" in tree.stderr) == (1, True)
    assert (here / "there" / "good").exists()
    into_file = run_scp(host, "-r", str(there), f"{host.name}:{there}/good")
    assert (into_file.returncode, "good" in into_file.stderr) == (1, True)
    no_parent = run_scp(host, f"{here}/good", f"{host.name}:{there}/no/such/place")
    assert (no_parent.returncode, "No such file" in no_parent.stderr) == (1, True)


@pytest.mark.needs("rsync")
def test_rsync_copies_a_tree(host: SshHost, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(os.urandom(1 << 20))
    shell = " ".join(host.command())
    subprocess.run(
        ["rsync", "-a", "-e", shell, f"{tmp_path}/tree/", f"{host.name}:{tmp_path}/copy/"],
        check=True,
    )
    assert (tmp_path / "copy/file").read_bytes() == (tmp_path / "tree/file").read_bytes()


@contextmanager
def echo_server(address: str | tuple[str, int]) -> Iterator[socket.socket]:
    """Serve a TCP or Unix socket that echoes its input."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind(address)
        listener.listen(256)

        def answer(connection: socket.socket) -> None:
            with connection:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)

        def accept_all() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()

        thread = threading.Thread(target=accept_all, daemon=True)
        thread.start()
        yield listener
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT)


@contextmanager
def forward_port(host: SshHost, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a client with forwards, and wait until the server listens."""
    client = host.start("-v", "-oExitOnForwardFailure=yes", *options, host.name, "cat")
    assert client.stderr is not None
    sign = b"remote forward success" if "-R" in options else b"Entering interactive session"
    with client:
        try:
            lines: list[bytes] = []
            while not any(sign in line for line in lines[-1:]):
                lines.append(client.stderr.readline())
                assert lines[-1], b"".join(lines).decode()
            threading.Thread(target=client.stderr.read, daemon=True).start()
            yield client
        finally:
            client.kill()


def send_and_receive(connection: socket.socket, data: bytes) -> bytes:
    """Send ``data`` and return the response."""
    connection.settimeout(LIMIT)

    def send() -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    sender.join(LIMIT)
    return b"".join(parts)


@pytest.mark.parametrize("kind", ["-L", "-R"])
def test_tcp_forward_carries_all_bytes(host: SshHost, kind: str) -> None:
    data = os.urandom(1 << 20) * 16
    port = free_port()
    with echo_server(("127.0.0.1", 0)) as server:
        target = f"127.0.0.1:{server.getsockname()[1]}"
        with (
            forward_port(host, kind, f"127.0.0.1:{port}:{target}"),
            socket.create_connection(("127.0.0.1", port)) as connection,
        ):
            assert send_and_receive(connection, data) == data


def test_remote_forward_listens_on_loopback_only(host: SshHost) -> None:
    port = free_port()
    with forward_port(host, "-R", f"0.0.0.0:{port}:127.0.0.1:1"):
        listening = Path("/proc/net/tcp").read_text()
        result = re.findall(rf"([0-9A-F]{{8}}):{port:04X} 00000000:0000 0A", listening)
        assert result == ["0100007F"]


def test_dynamic_forward_reaches_a_port(host: SshHost) -> None:
    port = free_port()
    with echo_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        with (
            forward_port(host, "-D", f"127.0.0.1:{port}"),
            socket.create_connection(("127.0.0.1", port)) as connection,
        ):
            connection.sendall(b"\x05\x01\x00")
            assert connection.recv(2) == b"\x05\x00"
            address = socket.inet_aton("127.0.0.1") + number.to_bytes(2, "big")
            connection.sendall(b"\x05\x01\x00\x01" + address)
            assert connection.recv(10)[1] == 0
            assert send_and_receive(connection, b"through") == b"through"


def test_a_stream_to_a_port_ends_although_its_server_ends_first(host: SshHost) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with host.start("-W", f"127.0.0.1:{port}", host.name) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            try:
                connection, _ = server.accept()
                connection.sendall(b"answer")
                connection.close()
                assert client.stdout.read() == b"answer"
                client.stdin.close()
                assert client.wait(LIMIT) == 0
            finally:
                client.kill()


@pytest.mark.parametrize("kind", ["-L", "-R"])
def test_unix_socket_forward_carries_all_bytes(host: SshHost, kind: str, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 4
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    with (
        echo_server(str(inside)),
        forward_port(host, kind, f"{outside}:{inside}") as client,
    ):
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(outside))
                assert send_and_receive(connection, data) == data
        client.kill()
    if kind == "-R":
        wait_until_gone(outside)


def wait_until_gone(path: Path) -> None:
    """Wait until a program inside has removed its socket: it has no other sign of its end."""
    watched = threading.Event()
    for _ in range(int(LIMIT * 20)):
        if not path.exists():
            return
        watched.wait(0.05)
    raise AssertionError(f"{path} is still there")


def test_connection_that_cannot_be_opened_is_refused(host: SshHost, tmp_path: Path) -> None:
    result = host.run("-W", f"127.0.0.1:{free_port()}", host.name, check=False)
    assert b"open failed: connect failed: Connection refused" in result.stderr
    local, missing = tmp_path / "local", tmp_path / "missing"
    with (
        forward_port(host, "-L", f"{local}:{missing}"),
        socket.socket(socket.AF_UNIX) as connection,
    ):
        connection.connect(str(local))
        assert connection.recv(1) == b""


def test_hundred_parallel_channels_carry_their_own_bytes(host: SshHost) -> None:
    port = free_port()
    with echo_server(("127.0.0.1", 0)) as server:
        target = f"127.0.0.1:{server.getsockname()[1]}"
        with forward_port(host, "-L", f"{port}:{target}"):
            opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
            for number, connection in enumerate(opened):
                connection.sendall(f"{number}\n".encode())
            for number, connection in reversed(list(enumerate(opened))):
                with closing(connection):
                    connection.settimeout(LIMIT)
                    assert connection.recv(100) == f"{number}\n".encode()


def test_other_key_and_password_are_refused(host: SshHost, tmp_path: Path) -> None:
    other = SshKeys(tmp_path / "other")
    other.create_missing("digits")
    text = host.config.read_text().replace(str(host.keys.client_key), str(other.client_key))
    host.config.write_text(text)
    result = host.run("-oBatchMode=yes", host.name, "true", check=False)
    assert (result.returncode, b"Permission denied (publickey)" in result.stderr) == (255, True)
    result = host.run(
        "-oPreferredAuthentications=password,keyboard-interactive,none",
        host.name,
        "true",
        check=False,
    )
    assert (result.returncode, b"Permission denied (publickey)" in result.stderr) == (255, True)


def test_server_with_another_host_key_is_not_trusted(host: SshHost, tmp_path: Path) -> None:
    other = SshKeys(tmp_path / "other")
    other.create_missing("digits")
    text = host.config.read_text().replace(str(host.keys.known_hosts), str(other.known_hosts))
    host.config.write_text(text)
    result = host.run(host.name, "true", check=False)
    assert (result.returncode, b"verification failed" in result.stderr) == (255, True)


def test_agent_is_not_forwarded_even_on_request(host: SshHost) -> None:
    result = host.run("-A", host.name, "echo [$SSH_AUTH_SOCK]")
    assert result.stdout in (b"[]\n", f"[{os.environ.get('SSH_AUTH_SOCK', '')}]\n".encode())


def test_killed_client_leaves_no_process(host: SshHost) -> None:
    # Names no other process has.
    mark = f"97{os.getpid()}"
    client = host.start(host.name, f"sleep {mark}1 & echo ready; sleep {mark}2")
    assert client.stdout is not None
    with client:
        assert client.stdout.readline() == b"ready\n"
        client.kill()
        # Held by the server and the programs too.
        client.stdout.read()
    pause = threading.Event()
    for _ in range(int(LIMIT * 20)):
        remaining = [
            line for line in process_commands() if mark in line or host.server_words in line
        ]
        if not remaining:
            return
        pause.wait(0.05)
    raise AssertionError(remaining)


def test_keys_are_for_their_owner_only(host: SshHost) -> None:
    assert host.keys.directory.stat().st_mode & 0o777 == 0o700
    for path in (host.keys.client_key, host.keys.host_key, host.keys.known_hosts):
        assert path.stat().st_mode & 0o777 == 0o600
