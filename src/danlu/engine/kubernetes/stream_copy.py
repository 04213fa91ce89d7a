"""Copy a program's streams between file descriptors of this machine and a pod.

The descriptors may be shared with other processes (a terminal), so they stay blocking, and are read
and written in threads.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread

from danlu.errors import OutsideError, TemporaryError
from danlu.kube.errors import ConnectionLost
from danlu.kube.pod_streams import Channel, PodExec

_CHUNK_SIZE = 1 << 16


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
    program: PodExec,
    descriptors: ProgramDescriptors,
    *,
    terminal: bool,
    reject_output: Callable[[], Awaitable[None]],
) -> None:
    """Copy until the program has ended.

    ``reject_output`` is called once if nobody reads what it prints. Raises :class:`ConnectionLost`.
    """
    # Threads of other programs, blocked by a full pipe, must not delay this one.
    limiter = CapacityLimiter(2)
    with _raw_terminal(descriptors.stdin, terminal):
        if terminal:
            await send_terminal_size(program, descriptors.stdin)
        failure: OutsideError | TemporaryError | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(_copy_input, program, descriptors.stdin, terminal, limiter)
            try:
                await _copy_output(program, descriptors, limiter, reject_output)
            except (OutsideError, TemporaryError) as error:
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure


async def _copy_input(
    program: PodExec, descriptor: int, terminal: bool, limiter: CapacityLimiter
) -> None:
    with suppress(ConnectionLost):
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
    program: PodExec,
    descriptors: ProgramDescriptors,
    limiter: CapacityLimiter,
    reject_output: Callable[[], Awaitable[None]],
) -> None:
    targets = {Channel.STDOUT: descriptors.stdout, Channel.STDERR: descriptors.stderr}
    async for channel, data in program.read_output():
        target = targets.get(channel)
        if target is None:
            continue
        try:
            await _write_all(target, data, limiter)
        except OSError:
            del targets[channel]
            await reject_output()


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


async def send_terminal_size(program: PodExec, descriptor: int) -> None:
    """Send the size of a terminal of this machine to the program's."""
    with suppress(OSError, ConnectionLost):
        packed = fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8))
        rows, columns, _, _ = struct.unpack("HHHH", packed)
        if rows and columns:
            await program.resize_terminal(columns, rows)


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
