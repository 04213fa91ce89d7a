"""Serve an SSH client by the environment's listener: the process of ``danlu ssh --stdio``.

As light as :mod:`danlu.engine.ssh.connection_client`: what only the first connection needs is
loaded when it is needed.
"""

from __future__ import annotations

import os
from contextlib import suppress

from danlu.engine.ssh.connection_client import (
    SERVER_SOCKET,
    SSH_DIRECTORY,
    connect_listener,
)

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from types import ModuleType

_CHUNK_SIZE = 1 << 16


def serve_by_listener(directory: str | os.PathLike[str]) -> None:
    """Let the listener serve our standard streams until the SSH client disconnects.

    ``directory`` is that of the environment. Starts the listener if needed. Raises
    :class:`UsageError` if the environment does not run, and :class:`OutsideError` if the SSH client
    did not log in.
    """
    connection = _open_connection(directory)
    try:
        connection.settimeout(None)
        data = b""
        with suppress(ConnectionError):
            while chunk := connection.recv(_CHUNK_SIZE):
                data += chunk
    finally:
        connection.close()
    if data != b"{}":
        _load_start().raise_failure(directory, data)


def _open_connection(directory: str | os.PathLike[str]) -> socket:
    with suppress(OSError):
        return connect_listener(os.path.join(directory, SSH_DIRECTORY, SERVER_SOCKET))
    connection: socket = _load_start().start_listener(directory)
    return connection


def _load_start() -> ModuleType:
    """Return the module that starts the listener, and knows the errors."""
    from danlu.engine.ssh import listener_start

    return listener_start
