"""Connections that a client asks the server to open, or to accept: TCP and Unix sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import asyncssh
import msgspec
from asyncssh.forward import SSHForwarder, SSHLocalPathForwarder

from danlu.engine.control_client import connect_control_socket
from danlu.engine.environment_control import ConnectPortRequest
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.ssh import programs
from danlu.engine.ssh.session import SESSION_TASK
from danlu.engine.types import ExecClient, ExecProcess
from danlu.errors import DanluError

_OWN_NAMES = ("localhost", "127.0.0.1", "::1")
_LOOPBACK = {"::1": "::1"}
_CONNECT_TIMEOUT = 30.0
_MAX_MESSAGE = 600
_FRAME_HEADER = 4
_MAX_FRAME = 1 << 20
_MAX_TAKING = 16
_EXIT_TIMEOUT = 30.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedConnection:
    """A connected socket that does not block; ``process`` must be closed after it."""

    socket: socket.socket
    process: ExecProcess | None = None


class NetworkConnector(Protocol):
    """Opens connections in the network of an environment.

    ``shares_host`` says whether what listens on this machine is reached from the environment.
    """

    shares_host: bool

    async def connect_tcp(self, host: str, port: int) -> OpenedConnection:
        """Return a connection; raises :class:`OSError`."""


class HostNetworkConnector:
    """Connects from the host, whose network the environment shares."""

    shares_host = True

    async def connect_tcp(self, host: str, port: int) -> OpenedConnection:
        """See :class:`NetworkConnector`."""
        loop = asyncio.get_running_loop()
        errors: list[OSError] = []
        for family, kind, protocol, _, address in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            connection = socket.socket(family, kind, protocol)
            connection.setblocking(False)
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    await loop.sock_connect(connection, address)
            except BaseException as error:
                connection.close()
                if not isinstance(error, OSError):
                    raise
                errors.append(error)
            else:
                return OpenedConnection(connection)
        raise errors[0] if errors else OSError(f"{host} has no address")


class SupervisorConnector:
    """Connects to ports of an environment that has another network, through its supervisor."""

    shares_host = False

    def __init__(self, environment: EnvironmentDirectory) -> None:
        self._environment = environment

    async def connect_tcp(self, host: str, port: int) -> OpenedConnection:
        """See :class:`NetworkConnector`. Only the environment itself can be reached."""
        if host not in _OWN_NAMES:
            raise OSError(f"{host} cannot be reached: only ports of the environment are")
        ours, theirs = socket.socketpair()
        request = msgspec.json.encode(ConnectPortRequest(port))
        try:
            ours.setblocking(False)
            connect_control_socket(
                self._environment.control_socket, request, descriptors=[theirs.fileno()]
            ).close()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return OpenedConnection(ours)


def loopback_address(requested: str) -> str:
    """Return the address to listen on for ``-R``: always loopback, as sshd's default."""
    return _LOOPBACK.get(requested, "127.0.0.1")


class UnixSocketOpener:
    """Connects to Unix sockets in an environment, and listens on them there.

    Programs inside do it, as the environment's user, so that no path is resolved on the host. Each
    copies one connection; what they send is untrusted and only passed on.
    """

    def __init__(self, client: ExecClient, user: str) -> None:
        self._client = client
        self._user = user

    async def open_connection(self, action: str, path: str) -> OpenedConnection:
        """Connect to ``path``; with the action ``accept``, take a connection of that queue.

        Raises :class:`OSError`.
        """
        control, process = await self._start_program(action, path)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                await _expect_sign(control, b"+")
        except BaseException:
            control.close()
            await process.close()
            raise
        return OpenedConnection(control, process)

    async def listen(
        self, path: str, accept: Callable[[OpenedConnection], Awaitable[None]]
    ) -> UnixSocketListener:
        """Listen on ``path`` and call ``accept`` with each connection; raises :class:`OSError`."""
        control, process = await self._start_program("listen", path)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                await _expect_sign(control, b"=")
                queue = await _read_line(control)
        except BaseException:
            control.close()
            await process.close()
            raise

        async def take_connection() -> None:
            await accept(await self.open_connection("accept", queue))

        return UnixSocketListener(control, process, take_connection)

    async def _start_program(self, action: str, path: str) -> tuple[socket.socket, ExecProcess]:
        if "\0" in path or not path:
            raise OSError("invalid path")
        control, program = socket.socketpair()
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            control.setblocking(False)
            request = programs.socket_request(action, path, user=self._user)
            process = await self._client.start_exec(
                request, stdin=program.fileno(), stdout=program.fileno(), stderr=null
            )
        except BaseException as error:
            control.close()
            if isinstance(error, DanluError):
                raise OSError(str(error)) from error
            raise
        finally:
            program.close()
            os.close(null)
        return control, process


class UnixSocketListener(asyncssh.SSHListener):
    """A Unix socket that a program inside listens on; closing it ends the program."""

    def __init__(
        self,
        control: socket.socket,
        process: ExecProcess,
        take_connection: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._control = control
        self._process = process
        self._take_connection = take_connection
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._take_connections(), name=SESSION_TASK)

    def close(self) -> None:
        """Stop listening."""
        # The program sees the end of its stdin, removes its socket and exits. A hostile one goes
        # on, but is not heard.
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    async def wait_closed(self) -> None:
        """Wait until the program has ended."""
        await asyncio.wait([self._task])

    async def _take_connections(self) -> None:
        """Take connections as they are announced, a limited number at a time."""
        loop = asyncio.get_running_loop()
        free = asyncio.Semaphore(_MAX_TAKING)

        async def take_one() -> None:
            try:
                await self._take_connection()
            except (OSError, asyncssh.Error) as error:
                logger.warning("a Unix socket is no longer forwarded: %s", error)
                self.close()
            finally:
                free.release()

        taking: set[asyncio.Task[None]] = set()
        try:
            while await loop.sock_recv(self._control, 1):
                # A program inside may announce more connections than this machine has descriptors
                # for.
                await free.acquire()
                task = loop.create_task(take_one())
                taking.add(task)
                task.add_done_callback(taking.discard)
        except OSError as error:
            logger.warning("a Unix socket listener ended: %s", error)
        finally:
            self._control.close()
            await _end_process(self._process)


class _ChannelForwarder(SSHForwarder):
    """The side of a channel that a client opened."""

    def eof_received(self) -> bool:
        """Close once both sides have ended: OpenSSH's ``-W`` waits for the server to do it."""
        keep_open = super().eof_received()
        if not keep_open:
            self.close()
        return keep_open


class _ProgramForwarder(SSHForwarder):
    """The side of a program that copies a Unix socket of the environment, and sends frames.

    When its socket, our stream to it, is closed, it ends once it has delivered what it got.
    """

    process: ExecProcess
    _received = b""

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        """Pass on the data of complete frames; the empty one ends it."""
        self._received += data
        while len(self._received) >= _FRAME_HEADER:
            end = _FRAME_HEADER + int.from_bytes(self._received[:_FRAME_HEADER], "big")
            # Frames are kept in memory until they are complete, and their size is what a program of
            # the environment says.
            if end > _MAX_FRAME:
                self.close()
                return
            if len(self._received) < end:
                return
            frame, self._received = self._received[_FRAME_HEADER:end], self._received[end:]
            if frame:
                super().data_received(frame)
            elif not super().eof_received():
                self.close()

    def eof_received(self) -> bool:
        """Close: the program has ended."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the channel's side, and the program."""
        super().connection_lost(exc)
        _disconnect_program(self.process)


class ConnectingForwarder(_ProgramForwarder):
    """Forwards a connection that the program opened."""

    def __init__(self, process: ExecProcess) -> None:
        super().__init__()
        self.process = process


class AcceptedForwarder(_ProgramForwarder, SSHLocalPathForwarder):
    """Forwards a connection that was accepted inside: it opens a channel to the client."""

    def __init__(
        self,
        connection: asyncssh.SSHServerConnection,
        open_channel: Callable[..., Awaitable[None]],
        process: ExecProcess,
    ) -> None:
        SSHLocalPathForwarder.__init__(self, connection, open_channel)
        self.process = process


#: Held here because the event loop has only weak references to tasks.
_closing_tasks: set[asyncio.Task[None]] = set()


def _disconnect_program(process: ExecProcess) -> None:
    task = asyncio.get_running_loop().create_task(_end_process(process), name=SESSION_TASK)
    _closing_tasks.add(task)
    task.add_done_callback(_closing_tasks.discard)


async def _end_process(process: ExecProcess) -> None:
    """Wait for a program whose input has ended, which may hold bytes to deliver; then kill it."""
    with suppress(TimeoutError, DanluError):
        async with asyncio.timeout(_EXIT_TIMEOUT):
            await process.wait()
    await process.close()


async def forward_connection(opening: Awaitable[OpenedConnection]) -> Any:
    """Return the session, an ``SSHForwarder``, that copies between a channel and a socket.

    Raises :class:`asyncssh.ChannelOpenError` if it cannot be opened; the client sees its reason.
    """
    try:
        opened = await opening
        _, peer = await asyncio.get_running_loop().create_connection(
            lambda: ConnectingForwarder(opened.process) if opened.process else SSHForwarder(),
            sock=opened.socket,
        )
    except (OSError, DanluError) as error:
        raise asyncssh.ChannelOpenError(
            asyncssh.OPEN_CONNECT_FAILED, _describe_error(error)
        ) from None
    return _ChannelForwarder(peer)


async def _expect_sign(control: socket.socket, sign: bytes) -> None:
    """Read one byte, which must be ``sign``; raises :class:`OSError` with the program's message."""
    loop = asyncio.get_running_loop()
    found = await loop.sock_recv(control, 1)
    if found == sign:
        return
    if found == b"-":
        raise OSError(await _read_line(control))
    raise OSError("invalid message" if found else "python3 was not found in the environment")


async def _read_line(control: socket.socket) -> str:
    loop = asyncio.get_running_loop()
    line = b""
    while len(line) < _MAX_MESSAGE:
        # Byte by byte: what follows the line belongs to the connection.
        byte = await loop.sock_recv(control, 1)
        if byte in (b"", b"\n"):
            break
        line += byte
    return line.decode(errors="replace")


def _describe_error(error: Exception) -> str:
    """Return the system's words for an error: asyncio adds the address, which clients know."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error) or "Connection timed out"
