"""The processes of a container as danlu sees them, with real processes in place of a runtime's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from danlu.sandbox.container_processes import (
    find_container_init,
    handles_signal,
    is_program_running,
    read_cmdline,
)
from danlu.util.process_tree import child_pids, list_descendants


@contextmanager
def running(code: str, directory: Path) -> Iterator[int]:
    """The number of a Python process that runs ``code`` up to where it prints a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        cwd=directory,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    ("action", "handled"),
    [("signal.SIG_IGN", True), ("lambda *_: None", True), ("signal.SIG_DFL", False)],
)
def test_signal_is_handled_if_the_program_catches_or_ignores_it(
    tmp_path: Path, action: str, handled: bool
) -> None:
    code = f"import signal; signal.signal(signal.SIGUSR1, {action})"
    with running(f"{code}\nprint('ready', flush=True)\ninput()", tmp_path) as process:
        assert handles_signal(process, signal.SIGUSR1) is handled
        # Neither the next lower nor the next higher one.
        assert not handles_signal(process, signal.SIGUSR1 - 1)
        assert not handles_signal(process, signal.SIGUSR1 + 1)


def test_a_process_that_is_gone_has_nothing() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert not handles_signal(process.pid, signal.SIGTERM)
    assert read_cmdline(process.pid) == []
    assert child_pids(process.pid) == []
    assert not is_program_running(process.pid)


#: A keeper whose child is a "runtime", whose child executes `cat` unless it has no arguments. That
#: waits until somebody opens the named pipe.
_KEEPER = """
import os, signal
read, write = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        arguments = {arguments!r}
        if arguments:
            os.execv("/bin/cat", arguments)
        os.close(write)
        signal.pause()
    os.close(write)
    signal.pause()
os.close(write)
os.read(read, 1)
print("ready", flush=True)
input()
"""


@pytest.mark.parametrize(
    ("arguments", "is_program"),
    [
        (["train", "pipe"], True),
        (["/usr/bin/runc", "init"], False),
        (["/usr/bin/runc", "pipe"], True),
        (["init", "init"], True),
        # crun's child before it executes the program: a copy of the runtime.
        ([], False),
    ],
)
def test_program_runs_once_it_was_executed(
    tmp_path: Path, arguments: list[str], is_program: bool
) -> None:
    for name in ("init", "pipe"):
        os.mkfifo(tmp_path / name)
    with running(_KEEPER.format(arguments=arguments), tmp_path) as process:
        assert is_program_running(process) is is_program
        first = find_container_init(process)
        assert list_descendants(process) == [*child_pids(process), first]


def test_nothing_runs_before_the_runtime_has_started_anything(tmp_path: Path) -> None:
    with running("print('ready', flush=True); input()", tmp_path) as process:
        assert find_container_init(process) is None
        assert not is_program_running(process)
