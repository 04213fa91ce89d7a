"""Programs that nobody watches and that do nothing are given up on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest

from danlu.errors import TemporaryError
from danlu.util import process
from danlu.util.process_activity import run_program

#: A program whose child does nothing either, and whose output both hold open.
IDLE = """
import subprocess, sys
child = subprocess.Popen(["sleep", "infinity"])
open(sys.argv[1], "w").write(str(child.pid))
child.wait()
"""
BUSY = "import time\nfor n in range(5): time.sleep(0.5); print(n, flush=True)"


def test_output_and_exit_code_are_those_of_the_program(tmp_path: Path) -> None:
    code = "import os, sys; sys.stdout.write(sys.stdin.read() + os.getcwd()); sys.exit(3)"
    done = run_program([sys.executable, "-c", code], input=b"x" * 200_000, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, b"x" * 200_000 + os.fsencode(tmp_path))


def test_a_program_that_does_nothing_is_killed_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(TemporaryError, match="did nothing for") as caught:
        run_program([sys.executable, "-c", IDLE, str(tmp_path / "child")], stuck_seconds=2.0)
    assert "try again" in caught.value.hint
    assert has_ended(tmp_path / "child")


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
    assert has_ended(tmp_path / "child")
