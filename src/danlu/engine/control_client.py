"""Requests to a supervisor's control socket (:mod:`danlu.engine.control_socket`).

Every ``danlu exec`` waits for this module, so it loads no event loop and no codec of structs.
"""

from __future__ import annotations

import os
import socket

from danlu.util.sockets import short_socket_path

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: Files of a supervisor in the directory of its environment: the lock is held while it runs.
SUPERVISOR_LOCK = "supervisor.lock"
CONTROL_SOCKET = "control.sock"
STATE_FILE = "state.json"

_CHUNK_SIZE = 1 << 16
_REQUEST_TIMEOUT = 10.0


def terminal_variables() -> dict[str, str]:
    """Return the variables that say to a program what our terminal is."""
    return {"TERM": os.environ.get("TERM", "xterm")}


def connect_control_socket(
    path: str | os.PathLike[str], request: bytes, *, descriptors: Sequence[int] = ()
) -> socket.socket:
    """Connect and send a request; the response can then be read from the socket.

    Raises :class:`ConnectionError` or :class:`FileNotFoundError` if no supervisor is listening.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_REQUEST_TIMEOUT)
        with short_socket_path(path) as name:
            connection.connect(name)
        data = request + b"\n"
        # The descriptors go with the first byte; the socket may take only a part of the data.
        sent = socket.send_fds(connection, [data], descriptors)
        if data[sent:]:
            connection.sendall(data[sent:])
    except BaseException:
        connection.close()
        raise
    return connection


def send_request(path: str | os.PathLike[str], request: bytes) -> bytes:
    """Send a request and return the response.

    Raises :class:`ConnectionError` or :class:`FileNotFoundError` if no supervisor is listening.
    """
    with connect_control_socket(path, request) as connection:
        data = b""
        while not data.endswith(b"\n"):
            chunk = connection.recv(_CHUNK_SIZE)
            if not chunk:
                raise ConnectionResetError("the supervisor closed the connection")
            data += chunk
    return data
