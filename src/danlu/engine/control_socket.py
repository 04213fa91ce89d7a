"""A supervisor's control socket: one JSON line per request, one per response, file descriptors.

The client sends one request per connection. Only the user's own processes can connect, unless the
socket has another mode than 0600.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec
from anyio import abc

from danlu.engine.supervisor_directory import SupervisorResponse
from danlu.errors import DanluError, StoreError, UsageError
from danlu.util.fd_limit import fd_shortage_error, is_fd_shortage
from danlu.util.sockets import short_socket_path

_CHUNK_SIZE = 1 << 16
_MAX_DESCRIPTORS = 3
_REQUEST_TIMEOUT = 10.0
_ACCEPT_INTERVAL = 0.1
_SUPERVISOR = "the supervisor"

RequestHandler = Callable[["ControlConnection"], Awaitable[SupervisorResponse]]


class ControlConnection:
    """A client's connection, after its request has arrived.

    ``request`` is the JSON text; ``descriptors`` are the file descriptors that came with it, which
    are closed after the response.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.request = b""
        self.descriptors: list[int] = []
        self._lost_descriptors = False
        self._connection = connection
        self._rest = b""

    async def read_message(self) -> bytes | None:
        """Return the client's next line; None if it has disconnected."""
        while b"\n" not in self._rest:
            await anyio.wait_readable(self._connection)
            # Descriptors arrive with the first bytes of a message, which may come in chunks.
            try:
                chunk, descriptors, flags, _ = socket.recv_fds(
                    self._connection, _CHUNK_SIZE, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
            except ConnectionError:
                return None
            self.descriptors += descriptors
            self._lost_descriptors |= bool(flags & socket.MSG_CTRUNC)
            if not chunk:
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def close_descriptors(self) -> None:
        """Close the client's descriptors here; copies would keep its pipes open."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def streams(self) -> tuple[int, int, int]:
        """Return the descriptors for a program's streams; raise :class:`UsageError` without."""
        if len(self.descriptors) != _MAX_DESCRIPTORS:
            raise UsageError(f"exec needs {_MAX_DESCRIPTORS} descriptors")
        stdin, stdout, stderr = self.descriptors
        return stdin, stdout, stderr

    async def serve_client(self, handle: RequestHandler) -> None:
        """Read the request and send the response of ``handle``, or its error."""
        self._connection.setblocking(False)
        with self._connection:
            try:
                with anyio.move_on_after(_REQUEST_TIMEOUT):
                    self.request = await self.read_message() or b""
                if not self.request:
                    return
                if self._lost_descriptors:  # by the kernel: this process may not open them
                    raise fd_shortage_error(_SUPERVISOR)
                response = await handle(self)
            except DanluError as error:
                response = SupervisorResponse.of(error)
            except (msgspec.MsgspecError, OSError) as error:
                failure = StoreError(f"invalid request: {error}")
                short = fd_shortage_error(_SUPERVISOR) if is_fd_shortage(error) else failure
                response = SupervisorResponse.of(short)
            finally:
                # A copy of the client's pipe that stays open here would keep its reader waiting for
                # the end.
                self.close_descriptors()
            with suppress(OSError):
                self._connection.send(msgspec.json.encode(response) + b"\n")


async def serve_control_socket(
    path: Path,
    handle: RequestHandler,
    mode: int = 0o600,
    *,
    task_status: abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve requests at ``path`` until cancelled."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with short_socket_path(path) as name:
            listener.bind(name)
        # Connecting needs permission to write to the socket, which bind(2) created by the umask.
        # Nobody is accepted before listen(2).
        os.chmod(path, mode)
        listener.listen(64)
        listener.setblocking(False)
        task_status.started()
        async with anyio.create_task_group() as group:
            while True:
                await anyio.wait_readable(listener)
                try:
                    connection, _ = listener.accept()
                except (BlockingIOError, ConnectionError):
                    continue
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        raise
                    # The client waits until others have disconnected.
                    await anyio.sleep(_ACCEPT_INTERVAL)
                    continue
                group.start_soon(ControlConnection(connection).serve_client, handle)
