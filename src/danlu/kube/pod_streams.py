"""Programs in pods, and connections to their ports, over WebSockets.

The first byte of each message is a channel (k8s.io/apimachinery, pkg/util/remotecommand and
pkg/util/portforward). Version 5 of the protocol for programs is the first that can
close their input; API servers have it since Kubernetes 1.30.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from enum import IntEnum

import aiohttp
import msgspec

from danlu.errors import OutsideError
from danlu.kube.errors import ApiStatus, BadRequest, ConnectionLost, Forbidden
from danlu.kube.resources import PODS
from danlu.kube.transport import Transport
from danlu.util.decoding import decode_json
from danlu.util.sanitize import escape_unprintable

_EXEC_PROTOCOL = "v5.channel.k8s.io"
_PORT_PROTOCOL = "v4.channel.k8s.io"
_CLOSE_CHANNEL = 255
_CHUNK_SIZE = 1 << 15
_DATA_TYPES = (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)
#: The first message of each channel of a forwarded port is the port's number.
_PORT_PREFIX = 2


class Channel(IntEnum):
    """A stream of a program; ``STATUS`` says how it ended."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    STATUS = 3
    RESIZE = 4


class PodExec:
    """A program that was started in a running container."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, what: str) -> None:
        self._socket = socket
        self._what = what
        self._status: ApiStatus | None = None

    async def read_output(self) -> AsyncGenerator[tuple[Channel, bytes]]:
        """Yield what it prints until it has ended; raises :class:`ConnectionLost`."""
        async for channel, data in _read_messages(self._socket):
            if channel == Channel.STATUS:
                self._status = _decode_status(data)
                return
            if channel in (Channel.STDOUT, Channel.STDERR) and data:
                yield Channel(channel), data
        raise ConnectionLost(f"{self._what}: the API server closed the connection")

    async def send_input(self, data: bytes) -> None:
        """Send input; raises :class:`ConnectionLost`."""
        view = memoryview(data)
        for start in range(0, len(view), _CHUNK_SIZE):
            await self._send_frame(bytes([Channel.STDIN]) + view[start : start + _CHUNK_SIZE])

    async def end_input(self) -> None:
        """Close its input."""
        await self._send_frame(bytes([_CLOSE_CHANNEL, Channel.STDIN]))

    async def resize_terminal(self, columns: int, rows: int) -> None:
        """Report the size of its terminal."""
        size = msgspec.json.encode({"Width": columns, "Height": rows})
        await self._send_frame(bytes([Channel.RESIZE]) + size)

    async def close(self) -> None:
        """Disconnect, which does not end the program."""
        await self._socket.close()

    async def _send_frame(self, message: bytes) -> None:
        await _send_message(self._socket, message, self._what)

    @property
    def exit_code(self) -> int:
        """How it ended, 128+n for signal n.

        Raises :class:`OutsideError` if it could not be started, or has not ended.
        """
        status = self._status
        if status is None:
            raise OutsideError(f"{self._what}: the program has not ended")
        # Only an unsuccessful end has a reason.
        if not status.reason and not status.message:
            return 0
        for cause in status.details.causes if status.details else ():
            if cause.reason == "ExitCode" and cause.message.isdigit():
                return int(cause.message)
        raise OutsideError(f"{self._what}: {escape_unprintable(status.message or status.reason)}")


async def open_pod_exec(
    transport: Transport,
    namespace: str,
    pod: str,
    command: Sequence[str],
    *,
    container: str,
    terminal: bool = False,
) -> PodExec:
    """Start a program in a container; with a terminal, its stdout and stderr are one stream.

    Raises :class:`~danlu.kube.errors.NotFound` if there is no such pod, and other errors of the
    API server.
    """
    what = f"run a program in pod {pod}"
    query = [("command", word) for word in command]
    query += [("container", container), ("stdin", "true"), ("stdout", "true")]
    query.append(("tty", "true") if terminal else ("stderr", "true"))
    path = PODS.path(namespace=namespace, name=pod, subresource="exec")
    try:
        socket = await transport.open_websocket(path, query, protocols=(_EXEC_PROTOCOL,), what=what)
    except Forbidden as error:
        raise OutsideError(
            error.message, hint="it needs the verbs `get` and `create` on pods/exec"
        ) from error
    except BadRequest as error:
        raise OutsideError(error.message, hint=_VERSION_HINT) from error
    if socket.protocol != _EXEC_PROTOCOL:
        await socket.close()
        raise OutsideError(f"{what}: the API server is too old", hint=_VERSION_HINT)
    return PodExec(socket, what)


_VERSION_HINT = "programs in pods need Kubernetes 1.30 or newer"


class PodConnection:
    """A connection to a port of a pod. Neither side can close only its half."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, what: str) -> None:
        self._socket = socket
        self._what = what

    async def send(self, data: bytes) -> None:
        """Send data; raises :class:`ConnectionLost`."""
        await _send_message(self._socket, b"\0" + data, self._what)

    async def receive(self) -> AsyncIterator[bytes]:
        """Yield data until the program closes the connection.

        Raises :class:`OutsideError` if nothing listens on the port.
        """
        begun: set[int] = set()
        async for channel, data in _read_messages(self._socket):
            if channel not in begun:
                begun.add(channel)
                data = data[_PORT_PREFIX:]
            if channel and data:
                message = escape_unprintable(data.decode(errors="replace"), limit=300)
                raise OutsideError(f"{self._what}: {message}")
            if data:
                yield data

    async def close(self) -> None:
        """Close it."""
        await self._socket.close()


async def open_pod_port(transport: Transport, namespace: str, pod: str, port: int) -> PodConnection:
    """Connect to a port of a pod's loopback interface; raises errors of the API server.

    Whether something listens there is known when something is received.
    """
    what = f"connect to port {port} of pod {pod}"
    path = PODS.path(namespace=namespace, name=pod, subresource="portforward")
    try:
        socket = await transport.open_websocket(
            path, [("ports", str(port))], protocols=(_PORT_PROTOCOL,), what=what
        )
    except Forbidden as error:
        raise OutsideError(
            error.message, hint="it needs the verbs `get` and `create` on pods/portforward"
        ) from error
    return PodConnection(socket, what)


async def _read_messages(
    socket: aiohttp.ClientWebSocketResponse,
) -> AsyncIterator[tuple[int, bytes]]:
    """Yield channels and data until the other side closes."""
    while True:
        message = await socket.receive()
        if message.type not in _DATA_TYPES:
            return
        data = message.data if isinstance(message.data, bytes) else message.data.encode()
        if data:
            yield data[0], data[1:]


async def _send_message(socket: aiohttp.ClientWebSocketResponse, message: bytes, what: str) -> None:
    try:
        await socket.send_bytes(message)
    except (aiohttp.ClientError, ConnectionError) as error:
        raise ConnectionLost(f"{what}: the connection was lost") from error


def _decode_status(data: bytes) -> ApiStatus:
    try:
        return decode_json(data, ApiStatus)
    except msgspec.MsgspecError as error:
        raise OutsideError(f"invalid status of a program: {error}") from error
