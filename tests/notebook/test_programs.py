"""Programs beside the kernel: their lines, their exit codes, their end; and output at a pace."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import pytest

from danlu.errors import DanluError, MachineError, OutsideError, StepFailed, UsageError
from danlu.notebook import background, programs
from danlu.notebook.pacing import Paced
from tests.notebook.interrupts import interrupted, until

#: Says its number, and on an interrupt that it heard.
HEEDS = """
import os, time
print(os.getpid(), flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("heard", flush=True)
    raise SystemExit(130)
"""


def ran(code: str, lines: list[str], directory: Path) -> int:
    act = partial(programs.run, [sys.executable, "-c", code], lines.append, directory=directory)
    return background.run(act)


def test_lines_of_both_streams_and_the_exit_code_are_given(tmp_path: Path) -> None:
    lines: list[str] = []
    code = "import os,sys; print(os.getcwd()); print('a\\rb', file=sys.stderr, end=''); sys.exit(3)"
    assert ran(code, lines, tmp_path) == 3
    assert lines == [str(tmp_path), "a", "b"]


def test_a_program_is_interrupted_with_the_cell_and_heard_to_its_end(tmp_path: Path) -> None:
    lines: list[str] = []
    with interrupted(lambda: lines):
        ran(HEEDS, lines, tmp_path)
    until(lambda: not background.is_ending())
    assert lines[1:] == ["heard"]
    assert not os.path.exists(f"/proc/{lines[0]}/cmdline")


def test_a_program_that_does_not_heed_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_GRACE", 0.05)
    lines: list[str] = []
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + HEEDS
    with interrupted(lambda: lines):
        ran(code, lines, tmp_path)
    until(lambda: not background.is_ending())
    assert not os.path.exists(f"/proc/{lines[0]}/cmdline")


def test_danlu_is_that_of_this_python_whatever_lies_in_the_directory(tmp_path: Path) -> None:
    (tmp_path / "danlu.py").write_text("raise SystemExit('the wrong one')")
    lines: list[str] = []
    words = programs.danlu("version")
    assert words[0] == sys.executable
    assert background.run(partial(programs.run, words, lines.append, directory=tmp_path)) == 0
    assert "danlu" in lines[0]


@pytest.mark.parametrize(
    ("code", "error"),
    [(1, StepFailed), (2, UsageError), (3, OutsideError), (4, MachineError), (130, StepFailed)],
)
def test_an_exit_code_becomes_its_error(code: int, error: type[DanluError]) -> None:
    with pytest.raises(error, match=f"danlu build ended with exit code {code}") as raised:
        programs.refuse(code, "danlu build", lines=["why"])
    assert raised.value.details == ("why",)


def test_success_is_no_error() -> None:
    programs.refuse(0, "danlu build")


def test_output_is_written_together() -> None:
    written: list[str] = []
    out = Paced(written.append)
    out.line("a")
    out.line("b")
    out.tick()
    out.tick()
    out.line("c")
    out.end()
    assert written == ["a\nb\n", "c\n"]


def test_of_too_much_output_the_beginning_and_the_end_are_written() -> None:
    written: list[str] = []
    out = Paced(written.append, most=100)
    for number in range(100_000):
        out.line(f"line {number}")
        out.tick()
    out.end()
    lines = "".join(written).splitlines()
    assert lines[0] == "line 0"
    assert lines[-1] == "line 99999"
    assert len(lines) < 500
    told = next(line for line in lines if line.startswith("… "))
    assert int(told.split()[1].replace(",", "")) == 100_000 - len(lines) + 1
