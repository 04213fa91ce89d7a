"""danlu on another machine with a real OpenSSH server: what users of ``danlu context`` see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.remote.machine import CONTEXT, OtherMachine, create_machine
from tests.conftest import Danlu, remove_tree
from tests.ports import free_port

pytestmark = [pytest.mark.real, pytest.mark.needs("root", "sshd", "ssh", "busybox")]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherMachine]:
    """A machine to which danlu is copied once."""
    directory = tmp_path_factory.mktemp("machine")
    machine = create_machine(directory)
    with (
        # A short path, because ssh creates sockets in it.
        tempfile.TemporaryDirectory(prefix="ssh-") as sockets,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in machine.environ.items():
            patch.setenv(name, value)
        patch.setenv("XDG_RUNTIME_DIR", sockets)
        patch.delenv("DANLU_HOME", raising=False)
        danlu = machine.danlu()
        danlu("context", "create", CONTEXT, "--engine", "ssh://box", cwd=directory)
        danlu("context", "use", CONTEXT, cwd=directory)
        yield machine
        for name in danlu("ps", "-q", cwd=directory).stdout.split():
            danlu("down", "--grace", "0", name, cwd=directory)
        danlu("context", "rm", CONTEXT, cwd=directory)
    machine.close()
    remove_tree(machine.home)


@pytest.fixture
def danlu(machine: OtherMachine) -> Danlu:
    return machine.danlu()


@pytest.fixture(scope="module")
def port() -> int:
    """A port that is free here, and so on the other machine."""
    return free_port()


@pytest.fixture(scope="module")
def project(machine: OtherMachine, port: int) -> Path:
    """The project of a running environment called `digits`."""
    project = machine.directory / "digits"
    project.mkdir()
    (project / "train.py").write_text("first\n")
    command = ("up", "--image", "box:1", "-d", "-p", str(port))
    result = machine.danlu()(*command, cwd=project)
    assert "ssh digits.box.danlu" in result.stderr
    return project


def test_a_changed_file_is_synchronized_before_the_next_command(
    danlu: Danlu, project: Path
) -> None:
    (project / "train.py").write_text("second\n")
    result = danlu("exec", "cat", "/workspace/train.py", cwd=project)
    assert result.stdout == "second\n"


def test_commands_without_a_project_work_in_the_home_directory(
    danlu: Danlu, machine: OtherMachine, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(machine.here))
    (row,) = json.loads(danlu("ps", "--format", "json", cwd=machine.here).stdout)
    assert (row["name"], row["context"]) == ("digits", CONTEXT)
    danlu("jobs", "ls", cwd=machine.here)
    refused = danlu("run", "--", "true", cwd=machine.here, check=False)
    assert refused.returncode == 125
    assert "is not a project" in refused.stderr


def test_exit_codes_and_streams_pass(danlu: Danlu, project: Path) -> None:
    script = "echo out; echo err >&2; exit 7"
    result = danlu("exec", "sh", "-c", script, cwd=project, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (7, "out\n", "err\n")


def test_files_created_remotely_are_fetched(danlu: Danlu, project: Path) -> None:
    danlu("exec", "sh", "-c", "echo model >/workspace/model.bin", cwd=project)
    assert danlu("context", "fetch", cwd=project).stdout == "model.bin\n"
    assert (project / "model.bin").read_text() == "model\n"


def test_ports_are_reached_here(danlu: Danlu, project: Path, port: int) -> None:
    danlu("exec", "busybox", "httpd", "-p", f"127.0.0.1:{port}", "-h", "/workspace", cwd=project)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/train.py") as answer:
        assert answer.read() == (project / "train.py").read_bytes()


def test_a_real_client_enters_the_environment(machine: OtherMachine, project: Path) -> None:
    data = os.urandom(20_000_000)
    host = "digits.box.danlu"
    command = ["ssh", "-F", str(machine.directory / "ssh_config"), host]
    result = subprocess.run([*command, "cat; exit 3"], input=data, capture_output=True, check=False)
    assert result.stdout == data, result.stderr
    assert result.returncode == 3


def test_editors_open_the_host_of_the_other_machine(danlu: Danlu, project: Path) -> None:
    result = danlu("code", "--print", cwd=project)
    assert result.stdout == "vscode://vscode-remote/ssh-remote+digits.box.danlu/workspace\n"
    assert "Host digits.box.danlu\n" in danlu("ssh-config", cwd=project).stdout


@pytest.mark.timeout(60)
@pytest.mark.parametrize("delay", [0.2, 0.6, 1.0])
def test_ctrl_c_interrupts_at_any_time(machine: OtherMachine, project: Path, delay: float) -> None:
    (project / "large").write_bytes(os.urandom(1 << 20) * 200)
    program = [str(Path(sys.executable).with_name("danlu")), "exec", "sleep", "1000"]
    environ = {**os.environ, "DANLU_HOME": str(machine.here)}
    with subprocess.Popen(
        program, cwd=project, env=environ, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        # The interrupt may come at any time; this is not to wait for something.
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate()
    assert (process.returncode, stderr) == (130, b"interrupted\n")
    (project / "large").unlink()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("INT", 130, b"interrupted\n"),
        ("TERM", 143, b"terminated\n"),
        ("HUP", -signal.SIGHUP, b""),
    ],
)
def test_signals_reach_a_program_that_has_no_terminal(
    machine: OtherMachine,
    danlu: Danlu,
    project: Path,
    name: str,
    code: int,
    message: bytes,
) -> None:
    program = [str(Path(sys.executable).with_name("danlu")), "exec", "sh", "-c"]
    script = f"trap 'echo {name} >/caught; exit 3' {name}"
    script += "; echo started; while :; do sleep 0.01; done"
    environ = {**os.environ, "DANLU_HOME": str(machine.here)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*program, script],
        cwd=project,
        env=environ,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        # As Ctrl-C and a terminal that is closed, or as kill(1).
        send = os.kill if name == "TERM" else os.killpg
        send(process.pid, signal.Signals[f"SIG{name}"])
        _, stderr = process.communicate()  # which ends when nothing there has our streams any more
    assert (process.returncode, stderr) == (code, message)
    assert danlu("exec", "sh", "-c", "cat /caught; rm /caught", cwd=project).stdout == f"{name}\n"


def test_a_lost_connection_leaves_the_environment_running(
    machine: OtherMachine, danlu: Danlu, project: Path
) -> None:
    program = [
        str(Path(sys.executable).with_name("danlu")),
        "exec",
        "sh",
        "-c",
        "echo started; sleep 1000",
    ]
    environ = {**os.environ, "DANLU_HOME": str(machine.here)}
    pipe = subprocess.PIPE
    with subprocess.Popen(program, cwd=project, env=environ, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        machine.kill_connections()
        _, stderr = process.communicate()
    assert process.returncode == 125
    assert b"the connection to box failed or was lost" in stderr
    assert "Running" in danlu("ps", cwd=project).stdout


def test_an_environment_that_was_removed_has_no_host(
    machine: OtherMachine, danlu: Danlu, project: Path
) -> None:
    danlu("down", "--grace", "0", "digits", cwd=project)
    assert not list((machine.here / "config/ssh.d").glob("*.conf"))
    assert (
        "environment digits not found on box"
        in danlu("code", "digits", cwd=project, check=False).stderr
    )
