"""Serve SSH clients on a TCP port of this machine, each by a process of ``danlu ssh --stdio``.

It is for clients that cannot run a ``ProxyCommand``. As with inetd, the process gets the connection
as its standard input and output, so that all engines and clients share one server.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence

import anyio
from anyio import abc

from danlu.engine.environment_directory import EnvironmentDirectory, PortForward
from danlu.engine.ssh.keys import environment_keys
from danlu.errors import OutsideError
from danlu.util.danlu_program import CONTEXT_VARIABLE, LOCAL_CONTEXT, danlu_program
from danlu.util.files import write_atomic

_BACKLOG = 64
#: Anyone who reaches the port can open connections, each of which is a process.
MAX_CONNECTIONS = 64


async def serve_ssh_port(
    environment: EnvironmentDirectory,
    port: PortForward,
    authorized_keys: Sequence[str],
    *,
    task_status: abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve clients until cancelled; ``authorized_keys`` may log in besides the own key.

    Raises :class:`OutsideError` if the address is in use.
    """
    keys = environment_keys(environment)
    keys.create_missing(environment.name)
    write_atomic(keys.authorized_keys, "".join(f"{key}\n" for key in authorized_keys).encode())
    limiter = anyio.CapacityLimiter(MAX_CONNECTIONS)
    with _open_listener(port) as listener:
        task_status.started()
        async with anyio.create_task_group() as group:
            while True:
                await anyio.wait_readable(listener)
                try:
                    connection, _ = listener.accept()
                except OSError:
                    continue  # the client has disconnected
                if limiter.available_tokens < 1:
                    connection.close()
                    continue
                group.start_soon(_serve_client, environment.name, connection, limiter)


async def _serve_client(
    name: str, connection: socket.socket, limiter: anyio.CapacityLimiter
) -> None:
    """Hand the connection to a process, and kill that when the environment is stopped."""
    async with limiter:
        with connection:
            connection.setblocking(True)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            process = await anyio.open_process(
                [*danlu_program(), "ssh", "--stdio", name],
                stdin=connection.fileno(),
                stdout=connection.fileno(),
                stderr=subprocess.DEVNULL,
                # The environment is one of this machine, whatever context is current.
                env={**os.environ, CONTEXT_VARIABLE: LOCAL_CONTEXT},
                start_new_session=True,
            )
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                with anyio.CancelScope(shield=True):
                    await process.wait()


def _open_listener(port: PortForward) -> socket.socket:
    family = socket.AF_INET6 if ":" in port.address else socket.AF_INET
    address = (port.address, port.host_port)
    try:
        listener = socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OutsideError(
            f"cannot listen on {port.address}:{port.host_port}: {os.strerror(error.errno or 0)}",
            hint="choose another port with --ssh-port",
        ) from error
    listener.setblocking(False)
    return listener
