"""exit_process in real processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def run_program(program: str) -> tuple[int, str]:
    start = "import sys; from danlu.replica_runtime.exit import exit_process\n"
    result = subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize("code", [0, 1, 143])
def test_exit_process_uses_the_exit_code(code: int) -> None:
    assert run_program(f"exit_process({code})") == (code, "")


def test_exit_process_flushes_stdout() -> None:
    assert run_program("sys.stdout.write('last words'); exit_process(0)") == (0, "last words")


def test_exit_process_waits_for_threads_and_runs_atexit() -> None:
    program = """
        import atexit, threading
        may_end = threading.Event()
        atexit.register(print, "atexit")
        threading.Thread(target=lambda: (may_end.wait(20), print("thread"))).start()
        threading.Timer(0.1, may_end.set).start()
        exit_process(0)
    """
    assert run_program(program) == (0, "thread\natexit\n")


def test_exit_process_does_not_finalize_the_interpreter() -> None:
    program = """
        class Kept:
            def __del__(self):
                sys.stderr.write("taken down")
        kept = Kept()
        exit_process(0)
    """
    assert run_program(program) == (0, "")


def test_exit_process_tolerates_a_closed_stdout() -> None:
    assert run_program("sys.stdout.close(); exit_process(0)") == (0, "")
