"""The streams of a program: pipes or a terminal, read and written without blocking."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import termios
from contextlib import ExitStack

import asyncssh

CHUNK_SIZE = 1 << 18


class ProgramStreams:
    """The descriptors of the program, and our ends; ``errors`` is -1 for a terminal."""

    def __init__(self, program: tuple[int, int, int], input: int, output: int, errors: int) -> None:
        self.program = program
        self.input = input
        self.output = output
        self.errors = errors
        self._open = {*program, input, output, errors} - {-1}
        for descriptor in (input, output, errors):
            if descriptor >= 0:
                os.set_blocking(descriptor, False)

    def close_program_ends(self) -> None:
        """Close the program's ends, so that ours see when it closes them."""
        for descriptor in set(self.program):
            self._open.discard(descriptor)
            os.close(descriptor)

    def detach_input(self) -> None:
        """Let the writer of the input close our end of it."""
        self._open.discard(self.input)

    def close(self) -> None:
        """Close what is open."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()


def open_pipes(stack: ExitStack) -> ProgramStreams:
    """Return pipes for the three streams, closed by ``stack``, except ours for the input."""
    (stdin, input), (output, stdout), (errors, stderr) = os.pipe(), os.pipe(), os.pipe()
    streams = ProgramStreams((stdin, stdout, stderr), input, output, errors)
    stack.callback(streams.close)
    streams.detach_input()
    return streams


class DescriptorWriter:
    """Writes the channel's data to a pipe or terminal, and pauses the channel while it is full."""

    def __init__(
        self, descriptor: int, channel: asyncssh.SSHServerChannel[bytes], *, terminal: bool
    ) -> None:
        self._descriptor = descriptor
        self._channel = channel
        self._terminal = terminal
        self._pending = bytearray()
        self._waiting = False
        self._ended = False
        self._closed = False

    def write(self, data: bytes) -> None:
        """Write, or keep for later."""
        if not self._closed:
            self._pending += data
            self._write_pending()

    def end(self) -> None:
        """Close the program's input once all is written; end a terminal's line."""
        if self._ended or self._closed:
            return
        self._ended = True
        if self._terminal:
            self._pending += _end_of_file(self._descriptor)
        self._write_pending()

    def resume_channel(self) -> None:
        """Take more from the channel unless the program does not read."""
        if not self._waiting:
            self._channel.resume_reading()

    def abort(self) -> None:
        """Stop writing, and close the pipe."""
        if self._closed:
            return
        self._closed = True
        self._stop_waiting()
        if not self._terminal:
            os.close(self._descriptor)

    def _write_pending(self) -> None:
        try:
            while self._pending:
                written = os.write(self._descriptor, self._pending)
                del self._pending[:written]
        except BlockingIOError:
            if not self._waiting:
                self._waiting = True
                self._channel.pause_reading()
                asyncio.get_running_loop().add_writer(self._descriptor, self._write_pending)
            return
        except OSError:  # the program has closed its input: take and drop the rest
            self._pending.clear()
            self.abort()
            self._channel.resume_reading()
            return
        if self._waiting:
            self._stop_waiting()
            self._channel.resume_reading()
        if self._ended and not self._pending:
            self.abort()

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting = False
            asyncio.get_running_loop().remove_writer(self._descriptor)


async def wait_readable(descriptor: int) -> None:
    """Wait until there is something to read, or the end."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def read_terminal(master: int) -> bytes:
    """Read a terminal's output; nothing when all programs have closed it."""
    try:
        return os.read(master, CHUNK_SIZE)
    except OSError as error:
        # Linux's answer when no program has the terminal open any more.
        if error.errno == errno.EIO:
            return b""
        raise


def _end_of_file(terminal: int) -> bytes:
    """Return the character that ends a terminal's input, if it is in line mode."""
    attributes = termios.tcgetattr(terminal)
    end = attributes[6][termios.VEOF]
    return end if attributes[3] & termios.ICANON and isinstance(end, bytes) else b""


def set_terminal_size(terminal: int, size: tuple[int, int, int, int]) -> None:
    """Set columns, rows, and their sizes in pixels."""
    width, height, *pixels = (min(max(number, 0), 0xFFFF) for number in size)
    # The kernel's struct winsize: four unsigned shorts (ioctl_tty(2)).
    packed = struct.pack("HHHH", height, width, *pixels)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, packed)
