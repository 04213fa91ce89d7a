"""Run danlu's command line in a subprocess of the kernel, with throttled output.

Building changes the process that does it (:mod:`danlu.util.fork`), which a kernel with its threads
cannot do. So it runs in a separate process with the kernel's Python.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

import anyio
import msgspec
from anyio.abc import Process

from danlu.errors import DanluError, MachineError, OutsideError, Span, StepFailed, UsageError

#: Seconds between the interrupt and the kill; a job that the program runs stops within five.
_GRACE_SECONDS = 8.0

#: A longer line is passed on in pieces.
_MAX_LINE_BYTES = 64 << 10

#: How much output to show as it comes, and how many lines of the rest.
_MAX_CHARACTERS, _TAIL_LINES = 512 << 10, 400

_ERRORS: dict[int, type[DanluError]] = {2: UsageError, 3: OutsideError, 4: MachineError}


def danlu_command(*words: str) -> list[str]:
    """Return a command that runs danlu with this Python.

    ``-P`` keeps modules in the notebook's directory from shadowing those of the standard library.
    """
    return [sys.executable, "-P", "-m", "danlu", *words]


async def run_program(
    args: Sequence[str], on_line: Callable[[str], None], *, directory: Path
) -> int:
    """Run a program, call ``on_line`` for each line of its output, and return its exit code.

    stdout and stderr are merged, and carriage returns count as line ends. When cancelled, interrupt
    the program and give it a few seconds to exit.
    """
    process = await anyio.open_process(
        args,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        cwd=directory,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # Jupyter interrupts the kernel's whole process group; here only we interrupt the program.
        start_new_session=True,
    )
    try:
        await _read_lines(process, on_line)
        await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await _stop_process(process, on_line)
    assert process.returncode is not None
    return process.returncode


async def _read_lines(process: Process, on_line: Callable[[str], None]) -> None:
    rest = b""
    assert process.stdout is not None
    async for chunk in process.stdout:
        *lines, rest = (rest + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            on_line(line.decode(errors="replace"))
        if len(rest) > _MAX_LINE_BYTES:
            on_line(rest.decode(errors="replace"))
            rest = b""
    if rest:
        on_line(rest.decode(errors="replace"))


async def _stop_process(process: Process, on_line: Callable[[str], None]) -> None:
    """Interrupt the process if it is still running, and kill it if it does not exit."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with anyio.move_on_after(_GRACE_SECONDS):
            await _read_lines(process, on_line)
            await process.wait()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            # The whole group: programs that it started must not go on either.
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.stdout is not None:
        await process.stdout.aclose()


class ReportedError(msgspec.Struct, frozen=True, tag="error"):
    """The error that ends a run under ``--progress json``."""

    message: str
    details: tuple[str, ...] = ()
    hint: str = ""
    file: str = ""
    line: int = 0
    column: int = 0

    def to_exception(self, code: int) -> DanluError:
        """Return the exception for an exit code."""
        span = Span(self.file, self.line, self.column) if self.file else None
        if code in _ERRORS:
            return _ERRORS[code](self.message, hint=self.hint, details=self.details, span=span)
        return StepFailed(self.message, code=code, hint=self.hint, details=self.details, span=span)


def parse_error(line: str) -> ReportedError | None:
    """Parse the line of an error under ``--progress json``; None for any other line."""
    try:
        return msgspec.json.decode(line, type=ReportedError)
    except msgspec.MsgspecError:
        return None


def raise_for_exit_code(code: int, command: str, *, lines: Sequence[str] = ()) -> None:
    """Raise the error for an exit code of danlu other than 0, with its last lines of output."""
    if not code:
        return
    message = f"{command} failed with exit code {code}"
    details = tuple(lines)
    if code in _ERRORS:
        raise _ERRORS[code](message, details=details)
    raise StepFailed(message, code=code, details=details)


class ThrottledOutput:
    """Writes lines in batches. If there are too many, writes only the first and the last."""

    def __init__(
        self, write: Callable[[str], object], *, max_characters: int = _MAX_CHARACTERS
    ) -> None:
        self._write = write
        self._room = max_characters
        self._waiting: list[str] = []
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._dropped = 0

    def line(self, text: str) -> None:
        """Add a line."""
        if self._room > 0:
            self._room -= len(text) + 1
            self._waiting.append(text)
            return
        self._dropped += len(self._tail) == _TAIL_LINES
        self._tail.append(text)

    def tick(self) -> None:
        """Write the waiting lines."""
        lines, self._waiting = self._waiting, []
        if lines:
            self._write("\n".join(lines) + "\n")

    def end(self) -> None:
        """Write the last lines, and how many lines were left out before them."""
        if self._dropped:
            self._waiting.append(f"… {self._dropped:,} lines omitted …")
        self._waiting += self._tail
        self._tail.clear()
        self.tick()
