"""Programs of ours that a cell runs beside the kernel: danlu's own command line, above all.

A kernel has threads, and building changes the process that does it (:mod:`danlu.commands.apart`):
so it is done in a process of its own, of the kernel's Python.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

import anyio
from anyio.abc import Process

from danlu.errors import DanluError, MachineError, OutsideError, StepFailed, UsageError

__all__ = ["danlu", "refuse", "run"]

#: Seconds that a program has after an interrupt: a job that it runs ends within five.
_GRACE = 8.0

#: A line that has no end after so many bytes is given in pieces.
_LONGEST = 64 << 10

_ERRORS: dict[int, type[DanluError]] = {2: UsageError, 3: OutsideError, 4: MachineError}


def danlu(*words: str) -> list[str]:
    """The words that run danlu by this Python, whatever lies in the notebook's directory."""
    return [sys.executable, "-P", "-m", "danlu", *words]


async def run(args: Sequence[str], on_line: Callable[[str], None], *, directory: Path) -> int:
    """Run ``args``, call ``on_line`` with each line of its merged output, give its exit code.

    Cancelling it interrupts the program as Ctrl-C does, and waits for its end, but not for long.
    Carriage returns end lines too.
    """
    process = await anyio.open_process(
        args,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        cwd=directory,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # What interrupts a kernel goes to its whole group, and this is told by us.
        start_new_session=True,
    )
    try:
        await _read(process, on_line)
        await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await _ended(process, on_line)
    assert process.returncode is not None
    return process.returncode


async def _read(process: Process, on_line: Callable[[str], None]) -> None:
    rest = b""
    assert process.stdout is not None
    async for piece in process.stdout:
        *lines, rest = (rest + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            on_line(line.decode(errors="replace"))
        if len(rest) > _LONGEST:
            on_line(rest.decode(errors="replace"))
            rest = b""
    if rest:
        on_line(rest.decode(errors="replace"))


async def _ended(process: Process, on_line: Callable[[str], None]) -> None:
    """Interrupt what still runs, and kill what does not heed that."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with anyio.move_on_after(_GRACE):
            await _read(process, on_line)
            await process.wait()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.stdout is not None:
        await process.stdout.aclose()


def refuse(code: int, what: str, *, lines: Sequence[str] = ()) -> None:
    """Raise the error that the exit code of a danlu says, with its last ``lines``; none for 0."""
    if not code:
        return
    message = f"{what} ended with exit code {code}"
    details = tuple(lines)
    if code in _ERRORS:
        raise _ERRORS[code](message, details=details)
    raise StepFailed(message, code=code, details=details)
