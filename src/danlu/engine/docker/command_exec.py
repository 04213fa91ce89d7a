"""A program in a container, run by the ``exec`` command of Docker or Podman."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import Process

from danlu.engine.docker.command import DockerCommand, render_variables
from danlu.engine.types import ExecRequest
from danlu.errors import DanluError

#: Docker holds back a key that may be the first of those that end a connection, by default Ctrl-P,
#: until the next one. It has no value for "none"; hardly anybody types these three.
DETACH_KEYS = "ctrl-^,ctrl-@,ctrl-^"
#: How long a new size of a terminal waits for its program to be found.
_RESIZE_TIMEOUT = 10.0
_RESIZE_INTERVAL = 0.05


class CommandExec:
    """A process of the engine's command line."""

    #: The command line prints why it failed.
    failure = ""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._resizable = False

    @property
    def returncode(self) -> int | None:
        """See :class:`~danlu.engine.docker.container.ProgramProcess`."""
        return self._process.returncode

    async def wait(self, reject_output: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """See :class:`~danlu.engine.docker.container.ProgramProcess`."""
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
        """See :class:`~danlu.engine.docker.container.ProgramProcess`."""
        self._process.kill()


async def start_command_exec(
    command: DockerCommand, container: str, request: ExecRequest, streams: tuple[int, int, int]
) -> CommandExec:
    """Start the program of a request in a running container, with these descriptors as streams."""
    options, passed = render_variables(request.environment)
    args = ["exec", "--interactive", *(["--tty"] if request.terminal else []), *options]
    args += ["--detach-keys", "" if command.is_podman else DETACH_KEYS, "--user", request.user]
    args += ["--workdir", request.directory] if request.directory else []
    stdin, stdout, stderr = streams
    process = await command.open_process(
        *(*args, container, *request.args),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        variables=passed,
    )
    return CommandExec(process)
