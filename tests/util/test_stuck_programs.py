"""Programs that nobody watches and that do nothing are given up on."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from danlu.errors import TemporaryError
from danlu.util import process
from danlu.util.process_activity import limit_transfer, run_program
from tests.waiting import wait_for

#: A program whose child does nothing either, and whose output both hold open.
IDLE = """
import subprocess, sys
child = subprocess.Popen(["sleep", "infinity"])
open(sys.argv[1], "w").write(str(child.pid))
child.wait()
"""
BUSY = "import time\nfor n in range(5): time.sleep(0.5); print(n, flush=True)"


def test_a_program_that_ctrl_c_ends_is_an_interrupt() -> None:
    code = "import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2)"
    with pytest.raises(KeyboardInterrupt):
        run_program([sys.executable, "-c", code])


def test_output_and_exit_code_are_those_of_the_program(tmp_path: Path) -> None:
    code = "import os, sys; sys.stdout.write(sys.stdin.read() + os.getcwd()); sys.exit(3)"
    done = run_program([sys.executable, "-c", code], input=b"x" * 200_000, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, b"x" * 200_000 + os.fsencode(tmp_path))


def test_a_program_that_does_nothing_is_killed_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(TemporaryError, match="did nothing for") as caught:
        run_program([sys.executable, "-c", IDLE, str(tmp_path / "child")], stuck_seconds=2.0)
    assert "try again" in caught.value.hint
    wait_for(lambda: has_ended(tmp_path / "child"))


def has_ended(file: Path) -> bool:
    """Return whether the process with the id in ``file`` has ended; nobody may have reaped it."""
    status = Path(f"/proc/{file.read_text()}/status")
    return not status.exists() or "State:\tZ" in status.read_text()


def test_a_program_that_writes_now_and_then_is_waited_for() -> None:
    done = run_program([sys.executable, "-c", BUSY], stuck_seconds=30.0)
    assert done.stdout.split() == [b"0", b"1", b"2", b"3", b"4"]


def test_every_awaited_program_has_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "STUCK_SECONDS", 2.0)
    with pytest.raises(TemporaryError, match="did nothing for"):
        anyio.run(process.run, [sys.executable, "-c", IDLE, str(tmp_path / "child")])
    wait_for(lambda: has_ended(tmp_path / "child"))


def test_a_program_that_sends_nothing_more_is_killed_with_its_children(tmp_path: Path) -> None:
    code = f"print('begin', flush=True)\n{IDLE}"
    process = open_pipes([sys.executable, "-c", code, str(tmp_path / "child")])

    def read_lines() -> None:
        with limit_transfer(process, stuck_seconds=2.0) as (source, _):
            assert source.readlines() == [b"begin\n"]

    with pytest.raises(TemporaryError, match=r"python.* did nothing for"):
        read_lines()
    process.wait()
    wait_for(lambda: has_ended(tmp_path / "child"))


def test_a_program_that_reads_nothing_is_killed(tmp_path: Path) -> None:
    process = open_pipes([sys.executable, "-c", IDLE, str(tmp_path / "child")])
    with (
        pytest.raises(TemporaryError, match="did nothing for"),
        limit_transfer(process, stuck_seconds=2.0) as (_, sink),
    ):
        sink.write(bytes(1 << 20))  # more than a pipe holds
    process.wait()


def test_an_interrupted_transfer_does_not_wait_for_the_program(tmp_path: Path) -> None:
    process = open_pipes([sys.executable, "-c", IDLE, str(tmp_path / "child")])
    assert process.stdin is not None
    pipe = process.stdin.fileno()
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(1 << 16))
    os.set_blocking(pipe, True)

    def interrupt_transfer() -> None:
        with limit_transfer(process) as (_, sink):
            sink.write(b"stays in the buffer")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt_transfer()
    process.wait()


def test_transfers_go_on_as_long_as_something_moves() -> None:
    process = open_pipes([sys.executable, "-c", BUSY])
    with limit_transfer(process, stuck_seconds=30.0) as (source, _):
        assert source.read(-1).split() == [b"0", b"1", b"2", b"3", b"4"]
    assert process.wait() == 0


def open_pipes(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
