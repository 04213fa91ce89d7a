"""Serve an SSH client by the environment's listener: the process of ``danlu ssh --stdio``.

Every connection of an editor waits for this module, so it loads no SSH server, no event loop and no
codec of structs; what only the first connection needs is loaded when it is needed.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from danlu.engine.control_client import connect_control_socket

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

#: What a client sends with its streams. A listener of another version of danlu may still run.
PROTOCOL = b"danlu-ssh-1"
ACCEPTED = b"+"
STREAM_COUNT = 3
#: The names of :attr:`danlu.engine.ssh.keys.SshKeys.directory` and its socket.
SSH_DIRECTORY = "ssh"
SERVER_SOCKET = "server.sock"
_CHUNK_SIZE = 1 << 16


def serve_by_listener(directory: str | os.PathLike[str]) -> None:
    """Let the listener serve our standard streams until the SSH client disconnects.

    ``directory`` is that of the environment. Starts the listener if needed. Raises
    :class:`UsageError` if the environment does not run, and :class:`OutsideError` if the SSH client
    did not log in.
    """
    with _open_connection(directory) as connection:
        connection.settimeout(None)
        data = b""
        with suppress(ConnectionError):
            while chunk := connection.recv(_CHUNK_SIZE):
                data += chunk
    if data != b"{}":
        _load_start().raise_failure(directory, data)


def _open_connection(directory: str | os.PathLike[str]) -> socket.socket:
    with suppress(OSError):
        return connect_listener(os.path.join(directory, SSH_DIRECTORY, SERVER_SOCKET))
    connection: socket.socket = _load_start().start_listener(directory)
    return connection


def _load_start() -> ModuleType:
    """Return the module that starts the listener, and knows the errors."""
    from danlu.engine.ssh import listener_start

    return listener_start


def connect_listener(path: str | os.PathLike[str]) -> socket.socket:
    """Send our streams to the listener; raise :class:`OSError` unless it serves them."""
    connection = connect_control_socket(path, PROTOCOL, descriptors=range(STREAM_COUNT))
    try:
        # A listener of another version closes the connection, and a new one is started.
        if connection.recv(len(ACCEPTED)) != ACCEPTED:
            raise ConnectionResetError("it closed the connection")
    except BaseException:
        connection.close()
        raise
    return connection
