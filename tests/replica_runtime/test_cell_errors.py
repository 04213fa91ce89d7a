"""Exceptions of a cell: the printed traceback and the report to the notebook."""

from __future__ import annotations

import pickle
import signal
from pathlib import Path

import pytest

from tests.replica_runtime.bundles import run, write_cell_bundle


def test_traceback_has_cell_lines_and_no_frames_of_danlu(notebook: Path) -> None:
    code = "\n\ndef f():\n    raise ValueError('bad')\n\nf()\n"
    result = run(write_cell_bundle(notebook, code))
    assert result.code == 1
    assert result.err == (
        "Traceback (most recent call last):\n"
        "  cell, line 6, in <module>\n    f()\n"
        "  cell, line 4, in f\n    raise ValueError('bad')\n"
        "ValueError: bad\n"
    )
    output = result.raised
    assert (output["type"], output["message"], output["line"]) == ("ValueError", "bad", 4)
    assert output["text"] == result.err


def test_line_is_the_last_line_of_the_cell(notebook: Path) -> None:
    document = run(write_cell_bundle(notebook, "import json\n\njson.loads('{')\n"))
    assert document.raised["line"] == 3


def test_traceback_has_relative_paths_of_local_modules(notebook: Path) -> None:
    (notebook / "helper.py").write_text("def f():\n    raise KeyError(1)\n")
    result = run(write_cell_bundle(notebook, "import helper\nhelper.f()\n", path=[str(notebook)]))
    assert '  File "helper.py", line 2, in f\n' in result.err


def test_exception_causes_are_shown(notebook: Path) -> None:
    code = (
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error\n"
    )
    err = run(write_cell_bundle(notebook, code)).err
    assert err.count("  cell, line ") == 2
    assert "The above exception was the direct cause of the following exception" in err
    assert "danlu_replica" not in err


def test_exception_group_is_shown_and_sent(notebook: Path) -> None:
    result = run(
        write_cell_bundle(
            notebook, "raise ExceptionGroup('two', [ValueError(1), KeyError('k')])\n"
        ),
        trusted=True,
    )
    assert "ExceptionGroup: two (2 sub-exceptions)" in result.err
    error = pickle.loads(result.raised["error"]["data"])
    assert [type(inner) for inner in error.exceptions] == [ValueError, KeyError]


def test_exception_class_defined_in_the_cell_is_sent(notebook: Path) -> None:
    result = run(
        write_cell_bundle(notebook, "class Odd(Exception): pass\nraise Odd(3)\n"), trusted=True
    )
    error = pickle.loads(result.raised["error"]["data"])
    assert (type(error).__name__, error.args) == ("Odd", (3,))


@pytest.mark.parametrize(
    "code",
    [
        "class Odd(Exception):\n"
        "    def __init__(self, a, b): super().__init__(a)\n\nraise Odd(1, 2)\n",
        "import threading\nraise ValueError(threading.Lock())\n",
        "raise ValueError('x' * (2 << 20))\n",
    ],
    ids=["cannot be made again", "cannot be pickled", "too large"],
)
def test_unpicklable_exception_is_described_by_its_text(notebook: Path, code: str) -> None:
    result = run(write_cell_bundle(notebook, code), trusted=True)
    assert result.code == 1
    assert result.raised["error"] is None
    assert "Traceback" in result.raised["text"]
    assert len(result.raised["message"]) <= 4096


def test_huge_traceback_is_shortened_when_sent(notebook: Path) -> None:
    code = (
        "import sys\nsys.setrecursionlimit(5000)\ndef f(n):\n    return g(n)\n"
        "def g(n):\n    return f(n - 1) if n else 1 / 0\nf(2000)\n"
    )
    result = run(write_cell_bundle(notebook, code))
    assert result.err.count("cell, line 4, in f") == 2001
    text = result.raised["text"]
    assert len(text) < 70_000
    assert text.startswith("Traceback")
    assert text.endswith("ZeroDivisionError: division by zero\n")
    assert "characters omitted" in text


def test_failing_str_of_an_exception_is_handled(notebook: Path) -> None:
    code = "class Odd(Exception):\n    def __str__(self): raise KeyError\nraise Odd\n"
    result = run(write_cell_bundle(notebook, code))
    assert (result.code, result.raised["type"]) == (1, "Odd")


@pytest.mark.parametrize(
    ("call", "code", "err"),
    [("3", 3, ""), ("'no data'", 1, "no data\n"), ("None", 0, ""), ("False", 0, "")],
)
def test_exit_code_of_the_cell_is_kept(notebook: Path, call: str, code: int, err: str) -> None:
    result = run(write_cell_bundle(notebook, f"import sys\n\nsys.exit({call})\n"))
    assert (result.code, result.err) == (code, err)
    assert result.raised.get("type") == ("SystemExit" if code else None)
    assert result.raised.get("line") == (3 if code else None)


def test_interrupted_cell_exits_with_130(notebook: Path) -> None:
    result = run(
        write_cell_bundle(
            notebook, "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ninput()\n"
        )
    )
    assert result.code == 128 + signal.SIGINT
    assert result.raised["type"] == "KeyboardInterrupt"
    assert result.err.endswith("KeyboardInterrupt\n")


def test_syntax_error_on_the_replica_has_the_cells_line(notebook: Path) -> None:
    bundle = write_cell_bundle(notebook, "x = 1\n")
    (bundle.directory / "cell" / "cell.py").write_text("x = 1\n\nx = = 2\n")
    result = run(bundle)
    assert result.code == 1
    assert result.err.startswith("  cell, line 3\n")
    assert (result.raised["type"], result.raised["line"]) == ("SyntaxError", 3)


def test_excepthook_set_by_the_cell_is_called(notebook: Path) -> None:
    code = "import sys\nsys.excepthook = lambda *info: print('mine', info[1])\n1 / 0\n"
    result = run(write_cell_bundle(notebook, code))
    assert (result.code, result.out, result.err) == (1, "mine division by zero\n", "")
    assert result.raised["line"] == 3


SIGTERM_TO_ITSELF = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
finally:
    print("saved")
"""


def test_sigterm_unwinds_a_cell(notebook: Path) -> None:
    result = run(write_cell_bundle(notebook, SIGTERM_TO_ITSELF))
    assert (result.code, result.out, result.err, result.raised) == (143, "saved\n", "", {})


def test_sigterm_cancels_the_main_task_of_a_cell(notebook: Path) -> None:
    code = """
import asyncio, os, signal

async def main():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        print("cancelled")
        raise

asyncio.run(main())
"""
    result = run(write_cell_bundle(notebook, code))
    assert (result.code, result.out, result.err) == (143, "cancelled\n", "")


def test_a_second_sigterm_ends_a_cell_that_caught_the_first(notebook: Path) -> None:
    code = """
import os, signal
while True:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    except KeyboardInterrupt:
        print("caught", flush=True)
"""
    result = run(write_cell_bundle(notebook, code))
    assert (result.code, result.out) == (-signal.SIGTERM, "caught\n")


def test_sigterm_reaches_the_handler_of_a_cell(notebook: Path) -> None:
    code = """
import os, signal
signal.signal(signal.SIGTERM, lambda number, frame: print("handled"))
os.kill(os.getpid(), signal.SIGTERM)
"""
    result = run(write_cell_bundle(notebook, code))
    assert (result.code, result.out) == (0, "handled\n")


def test_sigterm_ends_processes_that_a_cell_forks_as_usual(notebook: Path) -> None:
    code = """
import multiprocessing, signal
process = multiprocessing.get_context("fork").Process(target=signal.pause)
process.start()
process.terminate()
process.join()
print(process.exitcode)
"""
    result = run(write_cell_bundle(notebook, code))
    assert (result.code, result.out, result.err) == (0, "-15\n", "")
