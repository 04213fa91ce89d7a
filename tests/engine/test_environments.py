"""Environments that stay: started, entered, stopped, started again and removed."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from danlu.engine.environment_directory import EnvironmentDirectory, ServiceSpec
from danlu.engine.procfs import find_namespace_members, read_command
from danlu.store import Store
from tests.conftest import Danlu, program_in
from tests.jobs.containers.engine_rig import image, paths_of

pytestmark = [
    pytest.mark.real,
    pytest.mark.needs("busybox", "root"),
    pytest.mark.timeout(120),
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose store has the image ``box:1``."""
    home = tmp_path / "home"
    digest = image(home)
    with Store.open(paths_of(home).store) as store:
        store.tag("box:1", digest)
    return home


@pytest.fixture
def danlu(home: Path) -> Iterator[Danlu]:
    """The program in that home; environments that a test leaves are removed."""
    run = program_in(home)
    yield run
    names = run("ps", "-q", cwd=home).stdout.split()
    for name in names:
        run("down", "--grace", "0", name, cwd=home)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "digits"
    directory.mkdir()
    return directory


def start(danlu: Danlu, project: Path, *options: str) -> EnvironmentDirectory:
    danlu("up", "--image", "box:1", "-d", "-n", "digits", *options, cwd=project)
    return EnvironmentDirectory(project.parent / "home/environments/digits")


def run_inside(danlu: Danlu, project: Path, script: str, *, check: bool = True) -> str:
    done = danlu("exec", "-n", "digits", "--", "sh", "-c", script, cwd=project, check=check)
    return done.stdout


def test_programs_of_an_environment_share_files_and_see_the_project(
    danlu: Danlu, project: Path
) -> None:
    start(danlu, project)
    run_inside(danlu, project, "echo kept >/kept; echo made >made; sleep 1000 >/dev/null 2>&1 &")
    assert run_inside(danlu, project, "cat /kept; pwd; ps | grep -c '[s]leep 1000'") == (
        "kept\n/workspace\n1\n"
    )
    assert (project / "made").read_text() == "made\n"


def test_exec_passes_streams_and_exit_codes(danlu: Danlu, project: Path, home: Path) -> None:
    start(danlu, project)
    command = [str(Path(sys.executable).with_name("danlu")), "exec", "-n", "digits", "--"]
    environ = {**os.environ, "DANLU_HOME": str(home)}
    data = os.urandom(8 << 20)
    done = subprocess.run([*command, "cat"], input=data, capture_output=True, env=environ)
    assert (done.returncode, done.stdout == data) == (0, True)
    script = "echo out; echo err >&2; exit 7"
    done = subprocess.run([*command, "sh", "-c", script], capture_output=True, env=environ)
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    missing = subprocess.run([*command, "nosuch"], env=environ, capture_output=True)
    assert missing.returncode == 127
    killed = subprocess.run([*command, "sh", "-c", "kill -9 $$"], env=environ)
    assert killed.returncode == 137


def test_exec_gives_the_program_our_terminal(danlu: Danlu, project: Path, home: Path) -> None:
    start(danlu, project)
    command = [str(Path(sys.executable).with_name("danlu")), "exec", "-n", "digits", "--"]
    script = "trap 'stty size' WINCH; stty size; tty; echo ready; while :; do sleep 0.01; done"
    child, terminal = pty.fork()
    if child == 0:
        environ = {**os.environ, "DANLU_HOME": str(home), "TERM": "vt100"}
        os.execve(command[0], [*command, "sh", "-c", f"echo $TERM; {script}"], environ)
    set_window_size(terminal, 33, 111)
    output = read_until(terminal, b"ready")
    assert output.startswith(b"vt100\r\n")
    assert b"/dev/pts/0" in output
    set_window_size(terminal, 44, 122)
    os.kill(child, signal.SIGWINCH)
    read_until(terminal, b"44 122")
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    os.close(terminal)


def test_a_killed_client_leaves_no_program(danlu: Danlu, project: Path, home: Path) -> None:
    environment = start(danlu, project)
    command = [str(Path(sys.executable).with_name("danlu")), "exec", "-n", "digits", "--"]
    environ = {**os.environ, "DANLU_HOME": str(home)}
    script = "echo ready; sleep 1000 & wait"
    client = subprocess.Popen([*command, "sh", "-c", script], env=environ, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"ready\n"
    client.kill()
    client.wait()
    client.stdout.close()
    container = environment.read_state().container or 0

    def only_init_is_left() -> bool:
        commands = [read_command(pid) for pid in find_namespace_members(container)]
        return not any("sleep 1000" in command for command in commands)

    wait_for(only_init_is_left)


#: Runs a program that ends with the parent of this process.
TIED_PROGRAM = """
import os, sys
from pathlib import Path
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.foreground_exec import run_in_foreground
from danlu.engine.types import ExecRequest
environment = EnvironmentDirectory(Path(sys.argv[1]))
request = ExecRequest(("sh", "-c", "echo ready; sleep 1000 & wait"))
run_in_foreground(environment, request, parent=os.pidfd_open(os.getppid()))
"""


def test_a_program_can_end_with_the_process_that_started_the_client(
    danlu: Danlu, project: Path
) -> None:
    environment = start(danlu, project)
    words = ["sh", "-c", '"$@" & wait', "sh", sys.executable, "-c", TIED_PROGRAM]
    parent = subprocess.Popen([*words, str(environment.directory)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    container = environment.read_state().container or 0

    def is_gone() -> bool:
        commands = [read_command(pid) for pid in find_namespace_members(container)]
        return not any("sleep 1000" in command for command in commands)

    wait_for(is_gone)


def test_a_second_up_finds_the_running_environment(danlu: Danlu, project: Path) -> None:
    environment = start(danlu, project)
    first = environment.read_state().container
    start(danlu, project)
    assert environment.read_state().container == first


def test_two_ups_at_once_are_one_environment(danlu: Danlu, project: Path, home: Path) -> None:
    command = [str(Path(sys.executable).with_name("danlu")), "up", "--image", "box:1", "-d"]
    environ = {**os.environ, "DANLU_HOME": str(home)}
    ups = [subprocess.Popen(command, cwd=project, env=environ) for _ in range(3)]
    assert [up.wait(60) for up in ups] == [0, 0, 0]
    assert danlu("ps", "-q", cwd=project).stdout.split() == ["digits"]
    assert run_inside(danlu, project, "echo runs") == "runs\n"


def test_stop_keeps_files_and_start_brings_them_back(danlu: Danlu, project: Path) -> None:
    environment = start(danlu, project)
    run_inside(danlu, project, "echo kept >/kept; sleep 1000 >/dev/null 2>&1 &")
    stopped = danlu("stop", "digits", cwd=project)
    assert "ended: sleep 1000" in stopped.stderr
    assert environment.read_state().phase == "Stopped"
    assert environment.read_state().stopped_by_user
    failed = danlu("exec", "-n", "digits", "true", cwd=project, check=False)
    assert failed.returncode == 125
    assert "danlu start digits" in failed.stderr
    danlu("start", "digits", cwd=project)
    assert run_inside(danlu, project, "cat /kept; ps | grep -c '[s]leep 1000'", check=False) == (
        "kept\n0\n"
    )


def test_a_killed_supervisor_loses_nothing(danlu: Danlu, project: Path) -> None:
    environment = start(danlu, project)
    run_inside(danlu, project, "echo kept >/kept")
    container = environment.read_state().container
    assert container is not None
    members = find_namespace_members(container)
    os.kill(int(environment.lock.read_text()), signal.SIGKILL)
    for pid in members:
        wait_until_gone(pid)
    (row,) = json.loads(danlu("ps", "--format", "json", cwd=project).stdout)
    assert (row["phase"], "killed" in row["reason"]) == ("Stopped", True)
    danlu("start", "digits", cwd=project)
    assert run_inside(danlu, project, "cat /kept") == "kept\n"


def test_commit_keeps_changes_as_an_image(danlu: Danlu, project: Path) -> None:
    start(danlu, project)
    run_inside(danlu, project, "echo kept >/kept; rm /bin/awk; mkdir /opt; echo x >/opt/x")
    commit = danlu("commit", "digits", "--tag", "box:2", cwd=project)
    assert commit.stdout == "run([\"rm -rf -- '/bin/awk'\"])\n"
    assert "+ /kept (5 B)" in commit.stderr
    script = "cat /kept /opt/x; ls /bin/awk || echo removed"
    run = danlu("run", "--image", "box:2", "--", "sh", "-c", script, cwd=project)
    assert run.stdout == "kept\nx\nremoved\n"
    write = danlu("commit", "digits", "--write", cwd=project, check=False)
    assert write.returncode == 2
    assert "made from an image, not from a build file" in write.stderr


def test_down_removes_everything(danlu: Danlu, project: Path, home: Path) -> None:
    start(danlu, project)
    run_inside(danlu, project, "echo lost >/lost; touch kept")
    danlu("down", "digits", cwd=project)
    assert danlu("ps", "-q", cwd=project).stdout == ""
    assert sorted(path.name for path in (home / "environments").iterdir()) == ["digits.lock"]
    assert (project / "kept").exists()
    start(danlu, project)
    assert run_inside(danlu, project, "ls /lost", check=False) == ""


def test_commands_find_the_environment_of_the_directory(
    danlu: Danlu, project: Path, tmp_path: Path
) -> None:
    danlu("up", "--image", "box:1", "-d", cwd=project)
    assert danlu("exec", "pwd", cwd=project).stdout == "/workspace\n"
    danlu("stop", cwd=project)
    lost = danlu("stop", cwd=tmp_path, check=False)
    assert lost.returncode == 2
    assert f"no environment of {tmp_path} found" in lost.stderr


def test_another_project_cannot_take_a_name(danlu: Danlu, project: Path, tmp_path: Path) -> None:
    start(danlu, project)
    other = tmp_path / "other"
    other.mkdir()
    up = danlu("up", "--image", "box:1", "-d", "-n", "digits", cwd=other, check=False)
    assert up.returncode == 2
    assert f"environment digits belongs to {project}" in up.stderr


def test_a_stopped_environment_can_be_renamed(danlu: Danlu, project: Path) -> None:
    start(danlu, project)
    run_inside(danlu, project, "echo kept >/kept")
    running = danlu("rename", "digits", "letters", cwd=project, check=False)
    assert (running.returncode, "danlu stop digits" in running.stderr) == (2, True)
    danlu("stop", "digits", cwd=project)
    danlu("rename", "digits", "letters", cwd=project)
    assert danlu("ps", "-q", cwd=project).stdout == "letters\n"
    danlu("image", "rm", "box:1", cwd=project)
    danlu("start", "letters", cwd=project)
    assert danlu("exec", "-n", "letters", "cat", "/kept", cwd=project).stdout == "kept\n"
    for new in ("letters", "../x", "A"):
        assert danlu("rename", "letters", new, cwd=project, check=False).returncode == 2


def test_a_stopped_environment_keeps_its_image(danlu: Danlu, project: Path) -> None:
    start(danlu, project)
    danlu("stop", "digits", cwd=project)
    danlu("image", "rm", "box:1", cwd=project)
    danlu("image", "prune", "--all", "--yes", cwd=project, check=False)
    danlu("start", "digits", cwd=project)
    assert run_inside(danlu, project, "echo runs") == "runs\n"


def test_a_forwarded_port_reaches_the_environment(danlu: Danlu, project: Path) -> None:
    inner, outer = free_port(), free_port()
    start(danlu, project, "--port", f"{outer}:{inner}")
    (project / "page").write_text("hello")
    run_inside(danlu, project, serve_page(inner))
    with urllib.request.urlopen(f"http://127.0.0.1:{outer}/", timeout=20) as answer:
        assert answer.read() == b"hello"


def test_a_port_in_use_is_one_error(danlu: Danlu, project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        up = danlu(
            *("up", "--image", "box:1", "-d", "-n", "digits", "--port", f"{port}:1"),
            cwd=project,
            check=False,
        )
    assert up.returncode == 3
    assert f"cannot listen on 127.0.0.1:{port}" in up.stderr
    assert "Traceback" not in up.stderr


def test_services_restart_and_have_logs(danlu: Danlu, project: Path) -> None:
    environment = start(danlu, project)
    danlu("stop", "digits", cwd=project)
    script = "echo turn >>turns; wc -l <turns; [ $(wc -l <turns) -lt 2 ] || exec sleep 1000"
    services = (ServiceSpec("counter", ("sh", "-c", script)), ServiceSpec("lost", ("nosuch",)))
    change_spec(environment, services=services, init=("echo prepared >prepared; echo said",))
    danlu("start", "digits", cwd=project)
    wait_for(lambda: (project / "turns").exists() and count_lines(project / "turns") == 2)
    wait_for(lambda: environment.read_state().services[0].running)
    wait_for(lambda: environment.read_state().services[1].restarts > 0)
    counter, lost = environment.read_state().services
    assert (counter.restarts, lost.exit_code) == (1, 127)
    log = danlu("logs", "digits", "counter", cwd=project).stdout
    assert log.startswith("1\n")
    assert "counter exited with code 0; restarting in" in log
    assert danlu("logs", "digits", "init", cwd=project).stdout.endswith("\nsaid\n")
    members = find_namespace_members(environment.read_state().container or 0)
    danlu("stop", "digits", cwd=project)
    for pid in members:
        wait_until_gone(pid)


def set_window_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_until(terminal: int, wanted: bytes) -> bytes:
    output = b""
    while wanted not in output:
        output += os.read(terminal, 4096)
    return output


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait; the test's time limit ends it."""
    while not holds():
        time.sleep(0.02)


def wait_until_gone(pid: int) -> None:
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


def count_lines(path: Path) -> int:
    return path.read_text().count("\n")


def change_spec(environment: EnvironmentDirectory, **changes: Any) -> None:
    environment.write_spec(msgspec.structs.replace(environment.read_spec(), **changes))


def serve_page(port: int) -> str:
    answer = "printf 'HTTP/1.0 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\n'; cat page"
    return f'nc -ll -p {port} -e sh -c "{answer}" >/dev/null 2>&1 &'


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
