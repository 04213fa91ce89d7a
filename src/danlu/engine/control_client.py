"""Requests to a supervisor's control socket (:mod:`danlu.engine.control_socket`).

Every ``danlu exec`` waits for this module, so it does not load an event loop.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from danlu.util.sockets import short_socket_path

_CHUNK_SIZE = 1 << 16
_REQUEST_TIMEOUT = 10.0


def connect_control_socket(
    path: Path, request: bytes, *, descriptors: Sequence[int] = ()
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


def send_request(path: Path, request: bytes) -> bytes:
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
