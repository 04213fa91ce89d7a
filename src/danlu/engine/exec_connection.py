"""The connection of a program in an environment, for callers without an event loop.

Every ``danlu exec`` waits for this module, so it loads what only some responses need when there is
one.
"""

from __future__ import annotations

import os
from contextlib import suppress

from danlu.engine.control_client import CONTROL_SOCKET, connect_control_socket

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from types import ModuleType

_CHUNK_SIZE = 1 << 12
#: A :class:`~danlu.engine.supervisor_directory.SupervisorResponse` that is empty.
_SUCCESS = b"{}\n"


class ExecConnection:
    """The connection of one program to the supervisor, which kills it when this is closed."""

    def __init__(self, connection: socket) -> None:
        self._connection = connection
        self._response = b""

    @classmethod
    def open(
        cls, directory: str | os.PathLike[str], request: bytes, streams: tuple[int, int, int]
    ) -> ExecConnection:
        """Start a program in the environment that has this directory.

        ``request`` is that of :func:`danlu.engine.environment_control.encode_exec`. Raises
        :class:`UsageError` if the environment does not run.
        """
        try:
            connection = connect_control_socket(
                os.path.join(directory, CONTROL_SOCKET), request, descriptors=streams
            )
        except OSError as error:
            name = os.path.basename(directory)
            raise _load_control().translate_connect_error(error, name) from error
        connection.settimeout(None)
        return cls(connection)

    def fileno(self) -> int:
        """Return the socket's descriptor, readable when the program has ended."""
        return self._connection.fileno()

    def send_signal(self, number: int) -> None:
        """Send a signal to the program."""
        self._send_message(b'{"signal":%d}' % number)

    def notify_resize(self) -> None:
        """Report a new size of the program's terminal."""
        self._send_message(b'{"resize":true}')

    def _send_message(self, message: bytes) -> None:
        """Send a :class:`danlu.engine.environment_control.ExecMessage`."""
        # If the program has ended, its exit is waiting to be read.
        with suppress(OSError):
            self._connection.sendall(message + b"\n")

    def read_exit(self) -> int | None:
        """Read what has arrived; return the exit code once it is complete, else None.

        Raises :class:`DanluError` if the program could not be started, and :class:`OutsideError`
        if the supervisor ended first.
        """
        try:
            chunk = self._connection.recv(_CHUNK_SIZE)
        except ConnectionError:  # the supervisor was killed before it read our last message
            chunk = b""
        if not chunk:
            raise _load_control().stopped_error()
        self._response += chunk
        if not self._response.endswith(b"\n"):
            return None
        if self._response == _SUCCESS:
            return 0
        import json

        response = json.loads(self._response)
        if "error" in response:
            control = _load_control()
            control.SupervisorResponse(**response).raise_error()
        return int(response.get("code", 0))

    def close(self) -> None:
        """Disconnect, which kills the program if it still runs."""
        self._connection.close()


def _load_control() -> ModuleType:
    """Return the module that knows the errors."""
    from danlu.engine import environment_control

    return environment_control
