"""Copy a program's streams between file descriptors of this machine and a connection.

The descriptors may be shared with other processes (a terminal), so they stay blocking, and are read
and written in threads.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import tty
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import anyio
from anyio import CapacityLimiter, to_thread
from anyio.abc import TaskGroup

from danlu.errors import DanluError, OutsideError, TemporaryError

_CHUNK_SIZE = 1 << 16
_STDOUT, _STDERR = 1, 2


class ProgramConnection(Protocol):
    """The streams of a program elsewhere.

    All methods raise :class:`TemporaryError` if the connection is lost.
    """

    def read_output(self) -> AsyncGenerator[tuple[int, bytes]]:
        """Yield stream numbers (1 is stdout, 2 stderr) and data until the program has ended."""

    async def send_input(self, data: bytes) -> None:
        """Send input."""

    async def end_input(self) -> None:
        """Close its input."""

    async def resize_terminal(self, columns: int, rows: int) -> None:
        """Set the size of its terminal."""


class ProgramDescriptors:
    """Copies of a program's three descriptors, closed by :meth:`close`."""

    def __init__(self, stdin: int, stdout: int, stderr: int) -> None:
        # Copies, because those of the request are closed as soon as the program has started.
        self.stdin, self.stdout, self.stderr = (
            fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
            for descriptor in (stdin, stdout, stderr)
        )

    def close(self) -> None:
        """Close the copies."""
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.close(descriptor)


async def copy_streams(
    program: ProgramConnection,
    descriptors: ProgramDescriptors,
    *,
    terminal: bool,
    reject_output: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Copy until the program has ended.

    Raises :class:`TemporaryError` if the connection is lost.

    Args:
        program: The connection to it.
        descriptors: Where its streams come from and go to.
        terminal: Whether they are a terminal.
        reject_output: Is called once for each stream that nobody reads. Output is read on during
            that call: as long as it waits, Docker does not even report the end of other programs in
            the container.
    """
    # Threads of other programs, blocked by a full pipe, must not delay this one.
    limiter = CapacityLimiter(2)
    with _raw_terminal(descriptors.stdin, terminal):
        failure: OutsideError | TemporaryError | None = None
        async with anyio.create_task_group() as group:
            if terminal:
                group.start_soon(send_terminal_size, program, descriptors.stdin)
            group.start_soon(_copy_input, program, descriptors.stdin, terminal, limiter)
            try:
                await _copy_output(program, descriptors, limiter, reject_output, group)
            except (OutsideError, TemporaryError) as error:
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure


async def _copy_input(
    program: ProgramConnection, descriptor: int, terminal: bool, limiter: CapacityLimiter
) -> None:
    with suppress(TemporaryError):
        while True:
            # A file is always readable, but cannot be waited for.
            with suppress(PermissionError):
                await anyio.wait_readable(descriptor)
            try:
                data = await to_thread.run_sync(
                    os.read, descriptor, _CHUNK_SIZE, abandon_on_cancel=True, limiter=limiter
                )
            except OSError:  # the terminal is gone
                data = b""
            if not data:
                break
            await program.send_input(data)
        await program.end_input()


async def _copy_output(
    program: ProgramConnection,
    descriptors: ProgramDescriptors,
    limiter: CapacityLimiter,
    reject_output: Callable[[], Coroutine[Any, Any, None]],
    group: TaskGroup,
) -> None:
    targets = {_STDOUT: descriptors.stdout, _STDERR: descriptors.stderr}
    async for stream, data in program.read_output():
        target = targets.get(stream)
        if target is None:
            continue
        try:
            await _write_all(target, data, limiter)
        except OSError:
            del targets[stream]
            group.start_soon(reject_output)


async def _write_all(descriptor: int, data: bytes, limiter: CapacityLimiter) -> None:
    view = memoryview(data)
    while view:
        try:
            written = await to_thread.run_sync(
                os.write, descriptor, view, abandon_on_cancel=True, limiter=limiter
            )
        except BlockingIOError:  # somebody else has made it non-blocking
            await anyio.wait_writable(descriptor)
            continue
        view = view[written:]


async def send_terminal_size(program: ProgramConnection, descriptor: int) -> None:
    """Send the size of a terminal of this machine to the program's."""
    # The program may have ended.
    with suppress(DanluError):
        columns, rows = read_terminal_size(descriptor)
        if rows and columns:
            await program.resize_terminal(columns, rows)


def read_terminal_size(descriptor: int) -> tuple[int, int]:
    """Return the columns and rows of a terminal of this machine; zeros if they are not known."""
    try:
        packed = fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8))
    except OSError:
        return 0, 0
    rows, columns, _, _ = struct.unpack("HHHH", packed)
    return columns, rows


@contextmanager
def _raw_terminal(descriptor: int, terminal: bool) -> Iterator[None]:
    """Make a terminal raw: the one in the pod interprets keys."""
    before: list[Any] | None = None
    if terminal:
        with suppress(termios.error):
            before = termios.tcgetattr(descriptor)
            tty.setraw(descriptor, termios.TCSANOW)
    try:
        yield
    finally:
        if before is not None:
            with suppress(termios.error):
                termios.tcsetattr(descriptor, termios.TCSANOW, before)
