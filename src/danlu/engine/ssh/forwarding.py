"""Connections that a client asks the server to open, or to accept: TCP and Unix sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

import asyncssh
from asyncssh.forward import SSHForwarder

from danlu.engine.ssh import programs
from danlu.engine.types import ExecClient, ExecProcess
from danlu.errors import DanluError, OutsideError

_LOOPBACK = {"::1": "::1"}
_CONNECT_TIMEOUT = 30.0
_MAX_MESSAGE = 600

logger = logging.getLogger(__name__)


class NetworkConnector(Protocol):
    """Opens connections in the network of an environment."""

    async def connect_tcp(self, host: str, port: int) -> socket.socket:
        """Return a connected socket that does not block; raises :class:`OSError`."""


class HostNetworkConnector:
    """Connects from the host, whose network the environment shares."""

    async def connect_tcp(self, host: str, port: int) -> socket.socket:
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
                return connection
        raise errors[0] if errors else OSError(f"{host} has no address")


def loopback_address(requested: str) -> str:
    """Return the address to listen on for ``-R``: always loopback, as sshd's default."""
    return _LOOPBACK.get(requested, "127.0.0.1")


class UnixSocketOpener:
    """Connects to Unix sockets in an environment, and listens on them there.

    A program inside does it, as the environment's user, and sends the descriptors. Its messages
    are untrusted: only connected Unix stream sockets are taken from them.
    """

    def __init__(self, client: ExecClient, user: str) -> None:
        self._client = client
        self._user = user

    async def connect(self, path: str) -> socket.socket:
        """Return a connection to ``path``; raises :class:`OSError` if there is none."""
        control, process = await self._start("connect", path)
        with control:
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    connection = await _receive_connection(control)
            finally:
                await process.close()
        if connection is None:
            raise OSError("python3 was not found in the environment")
        return connection

    async def listen(
        self, path: str, accept: Callable[[socket.socket], Awaitable[None]]
    ) -> UnixSocketListener:
        """Listen on ``path`` and call ``accept`` with each connection; raises :class:`OSError`."""
        control, process = await self._start("listen", path)
        listener = UnixSocketListener(control, process, accept)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                await listener.wait_ready()
        except BaseException:
            listener.close()
            raise
        return listener

    async def _start(self, action: str, path: str) -> tuple[socket.socket, ExecProcess]:
        if "\0" in path or not path:
            raise OSError("invalid path")
        control, program = socket.socketpair()
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            control.setblocking(False)
            request = programs.socket_request(action, path, user=self._user)
            process = await self._client.start_exec(
                request, stdin=program.fileno(), stdout=null, stderr=null
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
        accept: Callable[[socket.socket], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._control = control
        self._process = process
        self._accept = accept
        self._task: asyncio.Task[None] | None = None

    async def wait_ready(self) -> None:
        """Wait until it listens, then accept connections in the background."""
        message, _ = await _receive_message(self._control)
        if message != b"=":
            raise _message_error(message)
        self._task = asyncio.get_running_loop().create_task(self._accept_connections())

    def close(self) -> None:
        """Stop listening."""
        # The program sees the end of its stdin, removes the socket and exits.
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._finish())

    async def wait_closed(self) -> None:
        """Wait until the program has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _accept_connections(self) -> None:
        accepting: set[asyncio.Task[None]] = set()
        try:
            while (connection := await _receive_connection(self._control)) is not None:
                task = asyncio.ensure_future(_run_accept(self._accept, connection))
                accepting.add(task)
                task.add_done_callback(accepting.discard)
        except OSError as error:
            logger.warning("a Unix socket listener ended: %s", error)
        finally:
            await self._finish()

    async def _finish(self) -> None:
        self._control.close()
        # Ended by itself unless it hangs: it has had the end of its input.
        with suppress(TimeoutError, OSError, DanluError):
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                await self._process.wait()
        await self._process.close()


async def _run_accept(
    accept: Callable[[socket.socket], Awaitable[None]], connection: socket.socket
) -> None:
    try:
        await accept(connection)
    except (OSError, asyncssh.Error) as error:
        connection.close()
        logger.warning("a connection was not forwarded: %s", error)


async def _receive_message(control: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message and its descriptors; empty at the end."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            message, descriptors, _, _ = socket.recv_fds(
                control, _MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            ready = asyncio.Event()
            loop.add_reader(control.fileno(), ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(control.fileno())
        else:
            return message, descriptors


async def _receive_connection(control: socket.socket) -> socket.socket | None:
    """Return the next connection, or None at the end; raises :class:`OSError` for an error."""
    message, descriptors = await _receive_message(control)
    if not message and not descriptors:
        return None
    if message != b"+" or len(descriptors) != 1:
        for descriptor in descriptors:
            os.close(descriptor)
        raise _message_error(message)
    descriptor = descriptors[0]
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("what was sent is not a socket")
    connection = socket.socket(fileno=descriptor)
    if connection.family != socket.AF_UNIX or connection.type != socket.SOCK_STREAM:
        connection.close()
        raise OSError("what was sent is not a Unix stream socket")
    connection.setblocking(False)
    return connection


def _message_error(message: bytes) -> OSError:
    if message.startswith(b"-"):
        return OSError(message[1:].decode(errors="replace"))
    return OSError("python3 was not found in the environment" if not message else "invalid message")


async def forward_socket(opening: Awaitable[socket.socket]) -> Any:
    """Return the session, an ``SSHForwarder``, that copies between a channel and a socket.

    Raises :class:`asyncssh.ChannelOpenError`, so that the client is told, if it cannot be opened.
    """
    try:
        connection = await opening
        _, peer = await asyncio.get_running_loop().create_connection(SSHForwarder, sock=connection)
    except (OSError, TimeoutError, OutsideError) as error:
        raise asyncssh.ChannelOpenError(
            asyncssh.OPEN_CONNECT_FAILED, _describe_error(error)
        ) from None
    return SSHForwarder(peer)


def _describe_error(error: Exception) -> str:
    """Return the system's words for an error: asyncio adds the address, which clients know."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error) or "Connection timed out"
