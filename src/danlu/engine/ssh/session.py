"""One session channel: a shell, a command or SFTP, with or without a terminal."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

import asyncssh

from danlu.engine.ssh import programs
from danlu.engine.ssh.streams import (
    CHUNK_SIZE,
    DescriptorWriter,
    ProgramStreams,
    open_pipes,
    read_terminal,
    set_terminal_size,
    wait_readable,
)
from danlu.engine.types import ExecClient, ExecProcess, ExecRequest
from danlu.errors import DanluError

#: What clients may set, besides the terminal's type: locale, and what editors send.
_ALLOWED_VARIABLES = frozenset({"LANG", "LANGUAGE", "COLORTERM", "TERM_PROGRAM", "NO_COLOR"})
_ALLOWED_PREFIXES = ("LC_", "VSCODE_")
_MAX_VARIABLES = 100
_MAX_VALUE = 4096

_STDERR = asyncssh.EXTENDED_DATA_STDERR
_EXIT_NOT_STARTED = 125

SESSION_TASK = "danlu ssh session"
"""Name of the tasks that run programs, which disconnect from them when they end."""

logger = logging.getLogger(__name__)


class ChannelSession(asyncssh.SSHServerSession[bytes]):
    """Runs the channel's program and copies its streams.

    Output is read only while the client takes it, and input taken only while the program reads it.
    The program is killed when the channel is closed first.
    """

    def __init__(self, client: ExecClient, user: str) -> None:
        self._client = client
        self._user = user
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._terminal_size: tuple[int, int, int, int] | None = None
        self._terminal_type = ""
        self._request: Callable[[dict[str, str]], ExecRequest] | None = None
        self._task: asyncio.Task[None] | None = None
        self._process: ExecProcess | None = None
        self._master: int | None = None
        self._stdin: DescriptorWriter | None = None
        self._early_input = b""
        self._input_ended = False
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._helpers: set[asyncio.Task[None]] = set()

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        """Keep the channel."""
        self._channel = chan

    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        """Note the terminal that the program will get."""
        self._terminal_type = term_type
        self._terminal_size = term_size
        return True

    def shell_requested(self) -> bool:
        """Start the user's shell."""
        self._request = lambda environment: programs.shell_request(
            environment, user=self._user, terminal=self._terminal_size is not None
        )
        return True

    def exec_requested(self, command: str) -> bool:
        """Start a command, unless it could not be passed to a program."""
        if "\0" in command:
            return False
        self._request = lambda environment: programs.command_request(
            command, environment, user=self._user, terminal=self._terminal_size is not None
        )
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        """Start SFTP inside the environment, the only subsystem."""
        self._request = lambda environment: programs.sftp_request(user=self._user)
        # A terminal would change bytes.
        self._terminal_size = None
        return subsystem == "sftp"

    def session_started(self) -> None:
        """Start the program, once the client knows that its request succeeded."""
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run_program(), name=SESSION_TASK)

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Pass input on; pause the channel while the program does not read it."""
        if self._stdin is None:
            self._early_input += data
            if self._channel is not None:
                self._channel.pause_reading()
        else:
            self._stdin.write(data)

    def eof_received(self) -> bool:
        """End the program's input; the channel stays open for its output."""
        self._input_ended = True
        if self._stdin is not None:
            self._stdin.end()
        return True

    def signal_received(self, signal: str) -> None:
        """Send a signal, named without ``SIG``, to the program."""
        number = _signal_number(signal)
        if number is not None and self._process is not None:
            self._start_helper(self._process.send_signal(number))

    def break_received(self, msec: int) -> bool:
        """Treat a break as an interrupt."""
        if self._process is not None:
            self._start_helper(self._process.send_signal(signal.SIGINT))
        return True

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """Resize the terminal."""
        self._terminal_size = width, height, pixwidth, pixheight
        if self._master is not None and self._process is not None:
            set_terminal_size(self._master, self._terminal_size)
            self._start_helper(self._process.notify_resize())

    def pause_writing(self) -> None:
        """Stop reading output: the client does not take it."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Read output again."""
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Kill the program if it still runs."""
        if self._task is not None:
            self._task.cancel()
        self._may_write.set()

    def _start_helper(self, work: object) -> None:
        """Run a coroutine of the process without waiting for it."""
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)

    async def _run_program(self) -> None:
        """Run the program and report how it ended."""
        assert self._channel is not None
        assert self._request is not None
        try:
            code = await self._run_request(self._request(self._client_environment()))
        except (DanluError, OSError) as error:
            logger.warning("a program could not be started: %s", error)
            message = f"danlu: {error}\r\n" if self._terminal_size else f"danlu: {error}\n"
            if isinstance(error, DanluError) and error.hint:
                message += f"hint: {error.hint}\n"
            self._write_output(message.encode(), _STDERR)
            code = _EXIT_NOT_STARTED
        if not self._channel.is_closing():
            self._channel.exit(code)

    async def _run_request(self, request: ExecRequest) -> int:
        with ExitStack() as stack:
            terminal = self._terminal_size is not None
            streams = self._open_terminal(stack) if terminal else open_pipes(stack)
            stdin, stdout, stderr = streams.program
            self._process = process = await self._client.start_exec(
                request, stdin=stdin, stdout=stdout, stderr=stderr
            )
            try:
                streams.close_program_ends()
                self._start_input(streams, stack)
                if terminal:
                    return await self._copy_terminal(process, streams.output)
                # As sshd: the channel ends when the program has, and all that it left running
                # has closed the output.
                await asyncio.gather(
                    self._copy_output(streams.output), self._copy_output(streams.errors, _STDERR)
                )
                return await process.wait()
            finally:
                if self._stdin is not None:
                    self._stdin.abort()
                # Not awaited as part of a cancelled task: closing must always happen.
                self._process = None
                await asyncio.shield(process.close())

    def _open_terminal(self, stack: ExitStack) -> ProgramStreams:
        assert self._terminal_size is not None
        master, slave = os.openpty()
        streams = ProgramStreams((slave, slave, slave), master, master, -1)
        stack.callback(streams.close)
        self._master = master
        stack.callback(setattr, self, "_master", None)
        set_terminal_size(master, self._terminal_size)
        return streams

    def _start_input(self, streams: ProgramStreams, stack: ExitStack) -> None:
        """Write what has arrived while the program was being started, and go on."""
        assert self._channel is not None
        terminal = streams.errors < 0
        self._stdin = DescriptorWriter(streams.input, self._channel, terminal=terminal)
        if not terminal:
            stack.callback(self._stdin.abort)
        early, self._early_input = self._early_input, b""
        if early:
            self._stdin.write(early)
        if self._input_ended:
            self._stdin.end()
        self._stdin.resume_channel()

    async def _copy_output(self, descriptor: int, datatype: int | None = None) -> None:
        """Copy until every writer has closed the pipe."""
        while True:
            await self._may_write.wait()
            await wait_readable(descriptor)
            data = os.read(descriptor, CHUNK_SIZE)
            if not data:
                return
            self._write_output(data, datatype)

    async def _copy_terminal(self, process: ExecProcess, master: int) -> int:
        """Copy the terminal's output until the program has ended, then what it left to read."""
        copying = asyncio.ensure_future(self._copy_master(master))
        try:
            code = await process.wait()
        finally:
            copying.cancel()
            with suppress(asyncio.CancelledError):
                await copying
        # What the program printed last is still in the terminal.
        while select.select([master], [], [], 0)[0]:
            await self._may_write.wait()
            data = read_terminal(master)
            if not data:
                break
            self._write_output(data)
        return code

    async def _copy_master(self, master: int) -> None:
        while True:
            await self._may_write.wait()
            await wait_readable(master)
            data = read_terminal(master)
            if not data:
                return
            self._write_output(data)

    def _write_output(self, data: bytes, datatype: int | None = None) -> None:
        """Send output; drop it if the client has closed the channel, which cancels the task."""
        assert self._channel is not None
        with suppress(OSError):
            self._channel.write(data, datatype)

    def _client_environment(self) -> dict[str, str]:
        """Return the allowed variables of the client, and the terminal's type."""
        assert self._channel is not None
        variables = select_variables(self._channel.get_environment())
        if self._terminal_size is not None:
            variables["TERM"] = self._terminal_type or "xterm"
        return variables


def select_variables(sent: Mapping[str, str]) -> dict[str, str]:
    """Return those of the variables that a client sent that an environment accepts."""
    allowed = {
        name: value
        for name, value in sent.items()
        if (name in _ALLOWED_VARIABLES or name.startswith(_ALLOWED_PREFIXES))
        and name.replace("_", "").isalnum()
        and name.isascii()
        and len(value) <= _MAX_VALUE
        and "\0" not in value
    }
    return dict(list(allowed.items())[:_MAX_VARIABLES])


def _signal_number(name: str) -> int | None:
    found = getattr(signal, f"SIG{name}", None)
    return int(found) if isinstance(found, signal.Signals) else None
