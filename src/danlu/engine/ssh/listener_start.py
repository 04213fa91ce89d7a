"""Start the listener of an environment's SSH connections, for the first of them."""

from __future__ import annotations

import os
from _socket import socket
from contextlib import suppress
from pathlib import Path

from danlu.engine.detached_process import read_report, spawn_module
from danlu.engine.environment_control import not_running_error
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.ssh.connection_client import connect_listener
from danlu.engine.ssh.keys import SshKeys, environment_keys
from danlu.engine.supervisor_directory import SupervisorResponse
from danlu.errors import OutsideError
from danlu.util.decoding import decode_json
from danlu.util.locks import file_lock


def start_listener(directory: str | os.PathLike[str]) -> socket:
    """Start the listener of the environment with this directory, and let it serve our streams.

    Raises :class:`UsageError` if the environment does not run, and :class:`OutsideError` if the
    listener does not start.
    """
    environment = EnvironmentDirectory(Path(directory))
    keys = environment_keys(environment)
    keys.create_missing(environment.name)
    with file_lock(keys.directory / "listener.lock"):
        # Another client may have started it meanwhile.
        with suppress(OSError):
            return connect_listener(keys.server_socket)
        _spawn_listener(environment, keys)
        try:
            return connect_listener(keys.server_socket)
        except OSError as error:
            raise OutsideError(
                f"the SSH server of {environment.name} does not answer: {error}",
                hint=f"see {keys.listener_log}",
            ) from error


def raise_failure(directory: str | os.PathLike[str], data: bytes) -> None:
    """Raise the error that the server of a connection has sent; nothing if it was killed."""
    environment = EnvironmentDirectory(Path(directory))
    if not data:
        raise OutsideError(
            f"the SSH server of {environment.name} ended before the connection",
            hint=f"see {environment_keys(environment).transport_log}",
        )
    decode_json(data, SupervisorResponse).raise_error()


def _spawn_listener(environment: EnvironmentDirectory, keys: SshKeys) -> None:
    module = "danlu.engine.ssh.connection_listener"
    arguments = (str(environment.directory),)
    if read_report(spawn_module(module, arguments, keys.listener_log)):
        return
    if not environment.is_running() or not environment.control_socket.exists():
        raise not_running_error(environment.name)
    raise OutsideError(
        f"the SSH server of {environment.name} did not start", hint=f"see {keys.listener_log}"
    )
