"""A program in a container of Docker, started and attached through the Engine API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import anyio

from danlu.engine.docker.command import DETACH_KEYS
from danlu.engine.docker.engine_api import DaemonStream, EngineApi
from danlu.engine.stream_copy import (
    ProgramDescriptors,
    copy_streams,
    read_terminal_size,
    send_terminal_size,
)
from danlu.engine.types import ExecRequest
from danlu.errors import DanluError, OutsideError

_FIRST_POLL, _MAX_POLL = 0.005, 1.0
_LOST_CODE = -1
_MAX_OUTPUT = 1 << 16


class ApiExec:
    """The program, for a caller that knows processes: ``returncode`` is None until it has ended.

    It is negative if the daemon did not say how the program ended; ``failure`` then says why.
    """

    def __init__(
        self,
        api: EngineApi,
        path: str,
        stream: DaemonStream,
        descriptors: ProgramDescriptors,
        terminal: bool,
    ) -> None:
        self.returncode: int | None = None
        self.failure = ""
        self._api = api
        self._path = path
        self._stream = stream
        self._descriptors = descriptors
        self._terminal = terminal
        self._copying = anyio.Lock()
        self._scope = anyio.CancelScope()
        self._is_killed = False

    async def wait(self, reject_output: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """Copy its streams until it has ended, unless another task does; return its exit code.

        ``reject_output`` is called if nobody reads what it prints.
        """
        async with self._copying:
            if self.returncode is None:
                # The one who has copied up to now may have been cancelled.
                with anyio.CancelScope() as self._scope:
                    if self._is_killed:
                        self._scope.cancel()
                    await self._copy_to_end(reject_output)
                if self.returncode is None:
                    self.returncode = _LOST_CODE
                with anyio.CancelScope(shield=True):
                    await self._stream.close()
                self._descriptors.close()
        return self.returncode

    async def _copy_to_end(self, reject_output: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await copy_streams(
                self,
                self._descriptors,
                terminal=self._terminal,
                reject_output=reject_output,
            )
            # A program may close its streams long before it ends.
            interval = _FIRST_POLL
            while (state := await self._api.call("GET", f"{self._path}/json"))["Running"]:
                await anyio.sleep(interval)
                interval = min(2 * interval, _MAX_POLL)
            self.returncode = int(state["ExitCode"])
        except DanluError as error:
            self.failure = error.message
        except (KeyError, TypeError, ValueError):
            self.failure = "docker: the daemon did not say how the program ended"

    def kill(self) -> None:
        """Give the connection up."""
        self._is_killed = True
        self._scope.cancel()

    async def notify_resize(self, is_running: Callable[[], Awaitable[bool]]) -> None:
        """Send the new size of the terminal; the daemon waits until the program runs."""
        if self._terminal and self.returncode is None:
            await send_terminal_size(self, self._descriptors.stdin)

    def read_output(self) -> AsyncGenerator[tuple[int, bytes]]:
        """See :class:`~danlu.engine.stream_copy.ProgramConnection`."""
        return self._stream.read_output()

    async def send_input(self, data: bytes) -> None:
        """See :class:`~danlu.engine.stream_copy.ProgramConnection`."""
        await self._stream.send_input(data)

    async def end_input(self) -> None:
        """See :class:`~danlu.engine.stream_copy.ProgramConnection`."""
        await self._stream.end_input()

    async def resize_terminal(self, columns: int, rows: int) -> None:
        """See :class:`~danlu.engine.stream_copy.ProgramConnection`."""
        await self._api.call("POST", f"{self._path}/resize?h={rows}&w={columns}")


async def start_api_exec(
    api: EngineApi, container: str, request: ExecRequest, streams: tuple[int, int, int]
) -> ApiExec:
    """Start the program of a request in a running container, with these descriptors as streams.

    Raises :class:`~danlu.errors.DanluError` if the daemon refuses it.
    """
    path = await _create_exec(api, container, request)
    start: dict[str, object] = {"Detach": False, "Tty": request.terminal}
    if request.terminal:
        columns, rows = read_terminal_size(streams[0])
        if columns and rows:
            start["ConsoleSize"] = [rows, columns]
    descriptors = ProgramDescriptors(*streams)
    try:
        stream = await api.open_stream(f"{path}/start", start, terminal=request.terminal)
    except BaseException:
        descriptors.close()
        raise
    return ApiExec(api, path, stream, descriptors, request.terminal)


async def read_api_exec(api: EngineApi, container: str, request: ExecRequest) -> bytes:
    """Run a program without input to its end, and return the beginning of what it prints.

    Raises :class:`~danlu.errors.DanluError` if the daemon refuses it.
    """
    path = await _create_exec(api, container, request, has_input=False)
    stream = await api.open_stream(f"{path}/start", {"Detach": False, "Tty": False})
    output = b""
    try:
        async with aclosing(stream.read_output()) as parts:
            async for number, data in parts:
                if number == 1 and len(output) < _MAX_OUTPUT:
                    output += data
    finally:
        with anyio.CancelScope(shield=True):
            await stream.close()
    return output


async def _create_exec(
    api: EngineApi, container: str, request: ExecRequest, *, has_input: bool = True
) -> str:
    """Create a program and return its path in the API."""
    created = await api.call(
        "POST",
        f"/containers/{container}/exec",
        {
            "AttachStdin": has_input,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": request.terminal,
            "DetachKeys": DETACH_KEYS,
            "Env": [f"{name}={value}" for name, value in request.environment.items()],
            "Cmd": list(request.args),
            "User": request.user,
            "WorkingDir": request.directory,
        },
    )
    identity = created.get("Id") if isinstance(created, dict) else None
    if not isinstance(identity, str) or not identity.isalnum():
        raise OutsideError("docker: the daemon did not say which program it created")
    return f"/exec/{identity}"
