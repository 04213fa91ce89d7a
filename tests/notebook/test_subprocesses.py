"""Subprocesses of the kernel: output, exit codes, interrupts; and throttled output."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import pytest

from danlu.errors import DanluError, MachineError, OutsideError, StepFailed, UsageError
from danlu.notebook import background_loop, subprocesses
from danlu.notebook.subprocesses import ThrottledOutput
from tests.notebook.interrupts import interrupt_when, until

#: Prints its process ID, and "interrupted" when it is.
INTERRUPTIBLE = """
import os, time
try:
    print(os.getpid(), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise SystemExit(130)
"""


def run_process(code: str, lines: list[str], directory: Path) -> int:
    act = partial(
        subprocesses.run_program, [sys.executable, "-c", code], lines.append, directory=directory
    )
    return background_loop.run(act)


def test_run_program_passes_lines_and_exit_code(tmp_path: Path) -> None:
    lines: list[str] = []
    code = "import os,sys; print(os.getcwd()); print('a\\rb', file=sys.stderr, end=''); sys.exit(3)"
    assert run_process(code, lines, tmp_path) == 3
    assert lines == [str(tmp_path), "a", "b"]


def test_interrupted_program_may_finish_its_output(tmp_path: Path) -> None:
    lines: list[str] = []
    with interrupt_when(lambda: lines):
        run_process(INTERRUPTIBLE, lines, tmp_path)
    until(lambda: not background_loop.has_pending_cleanup())
    assert lines[1:] == ["interrupted"]
    assert not os.path.exists(f"/proc/{lines[0]}/cmdline")


def test_program_that_ignores_the_interrupt_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocesses, "_GRACE_SECONDS", 0.05)
    lines: list[str] = []
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + INTERRUPTIBLE
    with interrupt_when(lambda: lines):
        run_process(code, lines, tmp_path)
    until(lambda: not background_loop.has_pending_cleanup())
    assert not os.path.exists(f"/proc/{lines[0]}/cmdline")


def test_danlu_command_ignores_modules_in_the_directory(tmp_path: Path) -> None:
    (tmp_path / "danlu.py").write_text("raise SystemExit('the wrong one')")
    lines: list[str] = []
    words = subprocesses.danlu_command("version")
    assert words[0] == sys.executable
    assert (
        background_loop.run(
            partial(subprocesses.run_program, words, lines.append, directory=tmp_path)
        )
        == 0
    )
    assert "danlu" in lines[0]


@pytest.mark.parametrize(
    ("code", "error"),
    [(1, StepFailed), (2, UsageError), (3, OutsideError), (4, MachineError), (130, StepFailed)],
)
def test_exit_code_is_mapped_to_an_error(code: int, error: type[DanluError]) -> None:
    with pytest.raises(error, match=f"danlu build failed with exit code {code}") as failure:
        subprocesses.raise_for_exit_code(code, "danlu build", lines=["why"])
    assert failure.value.details == ("why",)


def test_exit_code_zero_raises_nothing() -> None:
    subprocesses.raise_for_exit_code(0, "danlu build")


def test_throttled_output_is_written_in_batches() -> None:
    content: list[str] = []
    out = ThrottledOutput(content.append)
    out.line("a")
    out.line("b")
    out.tick()
    out.tick()
    out.line("c")
    out.end()
    assert content == ["a\nb\n", "c\n"]


def test_throttled_output_keeps_beginning_and_end() -> None:
    content: list[str] = []
    out = ThrottledOutput(content.append, max_characters=100)
    for number in range(100_000):
        out.line(f"line {number}")
        out.tick()
    out.end()
    lines = "".join(content).splitlines()
    assert lines[0] == "line 0"
    assert lines[-1] == "line 99999"
    assert len(lines) < 500
    output = next(line for line in lines if line.startswith("… "))
    assert int(output.split()[1].replace(",", "")) == 100_000 - len(lines) + 1
