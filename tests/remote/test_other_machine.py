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
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import Danlu, remove_tree
from tests.ports import free_port
from tests.remote.machine import CONTEXT, OtherMachine, create_machine
from tests.waiting import wait_for

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


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("exec", "sh", "-c"), 125),
        (("run", "--image", "box:1", "--", "sh", "-c"), 125),
        (("ssh", "digits"), 125),
        (("train", "--host-python", "--framework", "pytorch", "wait.py"), 3),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_runs_in_the_foreground_ends_with_the_connection(
    machine: OtherMachine, danlu: Danlu, project: Path, command: tuple[str, ...], code: int
) -> None:
    (project / "wait.py").write_text(
        "import time\nprint('started', flush=True)\ntime.sleep(1000)\n"
    )
    words = () if command[0] == "train" else ("echo started; sleep 1000.5",)
    program = [str(Path(sys.executable).with_name("danlu")), *command, *words]
    environ = {**os.environ, "DANLU_HOME": str(machine.here)}
    pipe = subprocess.PIPE
    with subprocess.Popen(program, cwd=project, env=environ, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert b"started" in process.stdout.readline()
        assert find_processes(machine, "sleep 1000.5", "wait.py")
        machine.kill_connections()
        _, stderr = process.communicate()
    assert process.returncode == code
    assert b"the connection to box failed or was lost" in stderr
    wait_for(lambda: not find_processes(machine, "sleep 1000.5", "wait.py"))
    assert "Running" in danlu("ps", cwd=project).stdout
    (project / "wait.py").unlink()


def find_processes(machine: OtherMachine, *commands: str) -> list[str]:
    """Find programs that were started on the other machine, by their command lines."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
            is_client = str(Path(sys.executable).with_name("danlu")) in words or "ssh" in words
            if words.endswith(commands) and not is_client:
                found.append(words)
    return found


_PRINT_VARIABLES = ("sh", "-c", 'printf "%s|%s|%s" "$TOKEN" "$UNSET" "$GIVEN"')
_VARIABLES = ("-e", "TOKEN", "-e", "UNSET", "-e", "GIVEN=x=y")


def test_variables_have_the_values_of_this_machine(
    machine: OtherMachine, danlu: Danlu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "it's\nhere")
    monkeypatch.delenv("UNSET", raising=False)
    command = ("run", "--image", "box:1", *_VARIABLES, "--", *_PRINT_VARIABLES)
    assert danlu(*command, cwd=tmp_path).stdout == "it's\nhere||x=y"
    danlu("up", "--image", "box:1", "--name", "variables", "-d", *_VARIABLES, cwd=tmp_path)
    result = danlu("exec", "-n", "variables", *_PRINT_VARIABLES, cwd=tmp_path)
    danlu("down", "--grace", "0", "variables", cwd=tmp_path)
    assert result.stdout == "it's\nhere||x=y"
    assert list((machine.home / ".local/share/danlu/running").iterdir()) == []


def test_commands_that_need_no_project_copy_none(
    machine: OtherMachine, danlu: Danlu, tmp_path: Path
) -> None:
    project = tmp_path / "unused"
    project.mkdir()
    danlu("jobs", "ls", cwd=project)
    assert not list(machine.home.glob(".local/share/danlu/projects/*/unused"))


def test_an_environment_that_was_removed_has_no_host(
    machine: OtherMachine, danlu: Danlu, project: Path
) -> None:
    danlu("down", "--grace", "0", "digits", cwd=project)
    assert not list((machine.here / "config/ssh.d").glob("*.conf"))
    assert (
        "environment digits not found on box"
        in danlu("code", "digits", cwd=project, check=False).stderr
    )
