"""The process namespace that a runtime is the first process of, seen from outside."""

from __future__ import annotations

import contextlib
import os
import signal

__all__ = ["first_inside", "kill_inside", "send_inside"]


def first_inside(keeper: int) -> int | None:
    """The runtime's process id, given that of its keeper (``unshare``); None before it started."""
    try:
        with open(f"/proc/{keeper}/task/{keeper}/children") as file:
            found = file.read().split()
    except OSError:
        return None
    return int(found[0]) if found else None


def kill_inside(keeper: int) -> None:
    """Kill the runtime and, with it, all in its namespace; the keeper ends when all are gone.

    Killing the keeper would do too, but then nobody waits for the others' end.
    """
    inside = first_inside(keeper)
    _kill(keeper if inside is None else inside, signal.SIGKILL)


def send_inside(keeper: int, number: int) -> None:
    """Send a signal to the runtime, which passes it on to the program."""
    inside = first_inside(keeper)
    _kill(keeper if inside is None else inside, number)


def _kill(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)
