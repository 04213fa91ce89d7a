"""Programs in the containers of engines that can start others in them: exec is enough."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

import anyio
from anyio.abc import Process

from danlu.engine.container_scripts import FIND_SCRIPT, KILL_SCRIPT
from danlu.engine.types import CONNECTION_LOST
from danlu.errors import DanluError
from danlu.sandbox.types import ContainerExit

#: The variable by which a program is found.
MARK_VARIABLE = "DANLU_EXEC"
ROOT_USER = "0:0"
_KILL_TIMEOUT = 10.0
_SIGNAL_CODE = 128
_KILLED_CODE = _SIGNAL_CODE + signal.SIGKILL
#: How long a new size of a terminal waits for its program to be found.
_RESIZE_TIMEOUT = 10.0
_RESIZE_INTERVAL = 0.05

RunScript = Callable[..., Awaitable[str]]
"""Runs a shell script with arguments as a user, and returns what it prints."""


class ProgramProcess(Protocol):
    """How a program in a container is connected to this process."""

    @property
    def returncode(self) -> int | None:
        """None until the program has ended; negative if it is not known how."""

    @property
    def failure(self) -> str:
        """Why it is not known; empty if it is, or if the connection was ended here."""

    async def wait(self, reject_output: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """Wait until the program has ended; ``reject_output`` is called if nobody reads it."""

    async def notify_resize(self, is_running: Callable[[], Awaitable[bool]]) -> None:
        """Pass on a new size of the terminal; ``is_running`` says whether the program runs yet."""

    def kill(self) -> None:
        """End the connection."""


class CommandProcess:
    """A process of the engine's command line."""

    #: The command line prints why it failed.
    failure = ""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._resizable = False

    @property
    def returncode(self) -> int | None:
        """See :class:`ProgramProcess`."""
        return self._process.returncode

    async def wait(self, reject_output: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """See :class:`ProgramProcess`."""
        return await self._process.wait()

    async def notify_resize(self, is_running: Callable[[], Awaitable[bool]]) -> None:
        """Signal the command line once the program runs, so that it forwards sizes.

        Podman's stops forwarding for good if a size arrives before its program runs
        (libpod/container_exec.go, ExecResize), and Docker's misses those that come too early.
        """
        if not self._resizable:
            # A program that changed its user cannot be found: give up after a while.
            with anyio.move_on_after(_RESIZE_TIMEOUT), suppress(DanluError):
                while self._process.returncode is None and not await is_running():
                    await anyio.sleep(_RESIZE_INTERVAL)
            self._resizable = True
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGWINCH)

    def kill(self) -> None:
        """See :class:`ProgramProcess`."""
        self._process.kill()


class ExecProgram:
    """A program next to the first process, for which the engine can do no more than start others.

    Signals are sent by a script in the container, which finds the program by a variable.
    """

    #: Its process is a child of the engine.
    pid: int | None = None

    def __init__(
        self,
        process: ProgramProcess,
        run_script: RunScript,
        programs: list[ExecProgram],
        user: str,
        mark: str,
    ) -> None:
        self._run_script = run_script
        self._programs = programs
        self._process = process
        self._user = user
        self._mark = mark
        self._inside_pid = ""

    async def wait(self) -> ContainerExit:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        code = await self._process.wait(self._reject_output)
        # Negative if the command line was killed, such as by SIGPIPE because nobody reads.
        is_lost = bool(self._process.failure) or code < 0
        if self in self._programs:
            self._programs.remove(self)
            if is_lost:
                await self._send_signal(signal.SIGKILL, everything=True)
        if self._process.failure:
            return ContainerExit(_KILLED_CODE, CONNECTION_LOST, self._process.failure)
        code = _SIGNAL_CODE - code if code < 0 else code
        return ContainerExit(code, "Error" if code else "Completed")

    async def _reject_output(self) -> None:
        await self._send_signal(signal.SIGPIPE)

    async def stop(self, *, grace: float) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        with anyio.CancelScope(shield=True):
            if grace > 0 and self._process.returncode is None:
                await self._send_signal(signal.SIGTERM)
                with anyio.move_on_after(grace):
                    await self.wait()
            if self._process.returncode is None:
                await self._send_signal(signal.SIGKILL, everything=True)
                with anyio.move_on_after(_KILL_TIMEOUT):
                    await self.wait()
            if self._process.returncode is None:
                self._process.kill()
            await self.wait()

    async def send_signal(self, number: int) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        if self._process.returncode is None:
            await self._send_signal(number)

    async def notify_resize(self) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        await self._process.notify_resize(self._is_running)

    async def _is_running(self) -> bool:
        return bool(await self._find_inside())

    async def hang_up(self) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        await self._send_signal(signal.SIGHUP, everything=True)

    async def _send_signal(self, number: int, *, everything: bool = False) -> None:
        with suppress(DanluError):
            pid = await self._find_inside()
            if pid:
                scope = "session" if everything else ""
                await self._run_script(ROOT_USER, KILL_SCRIPT, str(int(number)), pid, scope)

    async def _find_inside(self) -> str:
        """Return the program's process id in the container; empty if it has ended."""
        if not self._inside_pid:
            # As its own user, who may read its variables.
            output = await self._run_script(self._user, FIND_SCRIPT, self._mark)
            found = output.split()
            self._inside_pid = found[0] if found and found[0].isdigit() else ""
        return self._inside_pid
