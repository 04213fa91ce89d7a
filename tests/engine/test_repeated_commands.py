"""Repeated commands enter an environment without loading the program, if nothing has changed."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import Danlu
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.real,
    pytest.mark.needs("busybox"),
    pytest.mark.timeout(120),
]


@pytest.fixture
def project(tmp_path: Path, box_home: Path, danlu: Danlu) -> Iterator[Path]:
    """The project of a running environment that is entered without the program."""
    project = tmp_path / "digits"
    project.mkdir()
    (project / "build.envd").write_text('def build():\n    base(image="box:1")\n')
    danlu("up", "-d", cwd=project)
    try:
        # No stamp is written for files that have just changed: another change may have that time.
        wait_for(lambda: enter_shell(project, box_home) == (4, False))
        yield project
    finally:
        danlu("down", "--grace", "0", "digits", cwd=project)


def enter_shell(project: Path, home: Path, *options: str) -> tuple[int, bool]:
    """Run `danlu up` on a terminal; return the exit code, and whether the program was loaded."""
    command = [sys.executable, "-P", "-X", "importtime", "-m", "danlu", "up", *options]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(project)
        environ = {**os.environ, "DANLU_HOME": str(home)}
        os.execve(command[0], command, environ)
    os.write(terminal, b"exit 4\n")
    output = b""
    # Linux reports a closed terminal as an I/O error.
    with suppress(OSError):
        while data := os.read(terminal, 4096):
            output += data
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert b"digits keeps running" in output
    return code, b"danlu.cli.program\r\n" in output


def run_program(
    project: Path, home: Path, *words: str, **variables: str
) -> tuple[subprocess.CompletedProcess[str], bool]:
    """Run danlu; return what it did, and whether the program was loaded."""
    command = [sys.executable, "-P", "-X", "importtime", "-m", "danlu", *words]
    environ = {**os.environ, "DANLU_HOME": str(home), **variables}
    done = subprocess.run(
        command, cwd=project, env=environ, input="in", capture_output=True, text=True, check=False
    )
    return done, "danlu.cli.program\n" in done.stderr


@pytest.mark.parametrize("selection", [(), ("-n", "digits")])
def test_exec_finds_the_same_environment_for_any_program(
    danlu: Danlu, project: Path, box_home: Path, selection: tuple[str, ...]
) -> None:
    wait_for(lambda: not run_program(project, box_home, "exec", *selection, "true")[1])
    done, loaded = run_program(
        project, box_home, "exec", *selection, "--", "sh", "-c", "cat; exit 7"
    )
    assert (done.stdout, done.returncode, loaded) == ("in", 7, False)
    done, loaded = run_program(project, box_home, "exec", *selection, "nosuch")
    assert (done.returncode, loaded) == (127, False)
    assert "nosuch: not found" in done.stderr

    danlu("context", "create", "box", "--engine", "embedded", cwd=project)
    assert run_program(project, box_home, "exec", *selection, "true")[1]
    danlu("stop", "digits", cwd=project)
    done, loaded = run_program(project, box_home, "exec", *selection, "true")
    assert (done.returncode, loaded) == (125, True)
    assert "environment digits is not running" in done.stderr


def test_exec_in_another_directory_is_decided_again(
    project: Path, box_home: Path, tmp_path: Path
) -> None:
    wait_for(lambda: not run_program(project, box_home, "exec", "true")[1])
    (other := tmp_path / "other").mkdir()
    done, loaded = run_program(other, box_home, "exec", "true")
    assert (done.returncode, loaded) == (125, True)


def test_ssh_clients_reach_a_running_environment_of_this_machine(
    danlu: Danlu, project: Path, box_home: Path
) -> None:
    words = ("ssh", "--stdio", "digits")
    done, _ = run_program(project, box_home, *words, DANLU_CONTEXT="local")
    assert done.stdout.startswith("SSH-2.0-danlu"), done.stderr
    # Only to report that the client did not log in.
    assert "danlu.cli.ssh\n" not in done.stderr
    danlu("stop", "digits", cwd=project)
    done, loaded = run_program(project, box_home, *words, DANLU_CONTEXT="local")
    assert loaded
    assert "environment digits is not running" in done.stderr


def test_a_changed_build_file_is_evaluated(project: Path, box_home: Path) -> None:
    with (project / "build.envd").open("a") as file:
        file.write("# a comment\n")
    assert enter_shell(project, box_home) == (4, True)


def test_a_stopped_environment_is_started(danlu: Danlu, project: Path, box_home: Path) -> None:
    danlu("stop", "digits", cwd=project)
    assert enter_shell(project, box_home) == (4, False)
    danlu("stop", "digits", cwd=project)
    danlu("up", "-d", "--env", "A=1", cwd=project)
    danlu("stop", "digits", cwd=project)
    assert enter_shell(project, box_home) == (4, True)


def test_two_terminals_start_it_once(danlu: Danlu, project: Path, box_home: Path) -> None:
    danlu("stop", "digits", cwd=project)
    with ThreadPoolExecutor() as threads:
        results = list(threads.map(lambda _: enter_shell(project, box_home), range(2)))
    assert results == [(4, False)] * 2


def test_another_command_line_is_not_answered(project: Path, box_home: Path) -> None:
    assert enter_shell(project, box_home, "--env", "A=1") == (4, True)
    assert enter_shell(project, box_home, "--env", "A=1") == (4, True)
    assert enter_shell(project, box_home) == (4, False)


def test_a_new_context_is_used(danlu: Danlu, project: Path, box_home: Path) -> None:
    danlu("context", "create", "box", "--engine", "embedded", cwd=project)
    assert enter_shell(project, box_home) == (4, True)


def test_changed_settings_of_the_environment_are_compared(
    danlu: Danlu, project: Path, box_home: Path
) -> None:
    danlu("stop", "digits", cwd=project)
    danlu("up", "-d", "--env", "A=1", cwd=project)
    assert enter_shell(project, box_home) == (4, True)
    # The note that this environment has another variable than asked for is repeated.
    assert enter_shell(project, box_home) == (4, True)
