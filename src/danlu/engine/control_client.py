"""Requests to a supervisor's control socket (:mod:`danlu.engine.control_socket`).

Every ``danlu exec`` waits for this module, so it loads no event loop and no codec. The module
``socket`` takes a third of the time of an interpreter to load (for enumerations and selectors); its
classes are those of ``_socket`` with more methods.
"""

from __future__ import annotations

import os
import struct
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

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
) -> socket:
    """Connect and send a request; the response can then be read from the socket.

    Raises :class:`ConnectionError` or :class:`FileNotFoundError` if no supervisor is listening.
    """
    connection = socket(AF_UNIX, SOCK_STREAM)
    try:
        connection.settimeout(_REQUEST_TIMEOUT)
        with short_socket_path(path) as name:
            connection.connect(name)
        data = request + b"\n"
        # The descriptors go with the first byte; the socket may take only a part of the data.
        rights = struct.pack(f"{len(descriptors)}i", *descriptors)
        sent = connection.sendmsg([data], [(SOL_SOCKET, SCM_RIGHTS, rights)] if rights else [])
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
    connection = connect_control_socket(path, request)
    try:
        data = b""
        while not data.endswith(b"\n"):
            chunk = connection.recv(_CHUNK_SIZE)
            if not chunk:
                raise ConnectionResetError("the supervisor closed the connection")
            data += chunk
    finally:
        connection.close()
    return data
