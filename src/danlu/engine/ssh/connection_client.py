"""Serve an SSH client by the environment's listener: the process of ``danlu ssh --stdio``.

Every connection of an editor waits for this module, so it loads no SSH server and no event loop.
"""

from __future__ import annotations

import socket
from contextlib import suppress

import msgspec

from danlu.engine.control_client import connect_control_socket
from danlu.engine.detached_process import read_report, spawn_module
from danlu.engine.environment_control import (
    SupervisorResponse,
    not_running_error,
    raise_response_error,
)
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.ssh.keys import SshKeys, environment_keys
from danlu.errors import OutsideError
from danlu.util.locks import file_lock

#: What a client sends with its streams. A listener of another version of danlu may still run.
PROTOCOL = b"danlu-ssh-1"
ACCEPTED = b"+"
STREAM_COUNT = 3
_CHUNK_SIZE = 1 << 16


def serve_by_listener(environment: EnvironmentDirectory) -> None:
    """Let the listener serve our standard streams until the SSH client disconnects.

    Starts the listener if needed. Raises :class:`UsageError` if the environment does not run, and
    :class:`OutsideError` if the SSH client did not log in.
    """
    keys = environment_keys(environment)
    with _open_connection(environment, keys) as connection:
        connection.settimeout(None)
        data = b""
        with suppress(ConnectionError):
            while chunk := connection.recv(_CHUNK_SIZE):
                data += chunk
    if not data:
        raise OutsideError(
            f"the SSH server of {environment.name} ended before the connection",
            hint=f"see {keys.transport_log}",
        )
    raise_response_error(msgspec.json.decode(data, type=SupervisorResponse))


def _open_connection(environment: EnvironmentDirectory, keys: SshKeys) -> socket.socket:
    with suppress(OSError):
        return _connect_listener(keys)
    with file_lock(keys.directory / "listener.lock"):
        # Another client may have started it meanwhile.
        with suppress(OSError):
            return _connect_listener(keys)
        _start_listener(environment, keys)
        try:
            return _connect_listener(keys)
        except OSError as error:
            raise OutsideError(
                f"the SSH server of {environment.name} does not answer: {error}",
                hint=f"see {keys.listener_log}",
            ) from error


def _connect_listener(keys: SshKeys) -> socket.socket:
    """Send our streams to the listener; raise :class:`OSError` unless it serves them."""
    streams = range(STREAM_COUNT)
    connection = connect_control_socket(keys.server_socket, PROTOCOL, descriptors=streams)
    try:
        # A listener of another version closes the connection, and a new one is started.
        if connection.recv(len(ACCEPTED)) != ACCEPTED:
            raise ConnectionResetError("it closed the connection")
    except BaseException:
        connection.close()
        raise
    return connection


def _start_listener(environment: EnvironmentDirectory, keys: SshKeys) -> None:
    module = "danlu.engine.ssh.connection_listener"
    arguments = (str(environment.directory),)
    if read_report(spawn_module(module, arguments, keys.listener_log)):
        return
    if not environment.is_running() or not environment.control_socket.exists():
        raise not_running_error(environment.name)
    raise OutsideError(
        f"the SSH server of {environment.name} did not start", hint=f"see {keys.listener_log}"
    )
