"""Connect to the listener of an environment, which serves SSH clients.

Every connection of an editor waits for this module, so it loads no SSH server, no event loop and no
codec of structs.
"""

from __future__ import annotations

import os

from danlu.engine.control_client import connect_control_socket

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket

#: What a client sends with its streams. A listener of another version of danlu may still run.
PROTOCOL = b"danlu-ssh-1"
ACCEPTED = b"+"
STREAM_COUNT = 3
#: The names of :attr:`danlu.engine.ssh.keys.SshKeys.directory` and its socket.
SSH_DIRECTORY = "ssh"
SERVER_SOCKET = "server.sock"


def connect_listener(path: str | os.PathLike[str]) -> socket:
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
