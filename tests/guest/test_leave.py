"""The end of a program, by real processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def ended(program: str) -> tuple[int, str]:
    start = "import sys; from danlu.guest.leave import leave\n"
    done = subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("code", [0, 1, 143])
def test_the_exit_code_is_the_one_given(code: int) -> None:
    assert ended(f"leave({code})") == (code, "")


def test_what_was_printed_is_not_lost() -> None:
    assert ended("sys.stdout.write('last words'); leave(0)") == (0, "last words")


def test_threads_are_waited_for_and_then_atexit_is_called() -> None:
    program = """
        import atexit, threading
        may_end = threading.Event()
        atexit.register(print, "atexit")
        threading.Thread(target=lambda: (may_end.wait(20), print("thread"))).start()
        threading.Timer(0.1, may_end.set).start()
        leave(0)
    """
    assert ended(program) == (0, "thread\natexit\n")


def test_the_interpreter_is_not_taken_down() -> None:
    program = """
        class Kept:
            def __del__(self):
                sys.stderr.write("taken down")
        kept = Kept()
        leave(0)
    """
    assert ended(program) == (0, "")


def test_a_closed_stdout_is_no_failure() -> None:
    assert ended("sys.stdout.close(); leave(0)") == (0, "")
