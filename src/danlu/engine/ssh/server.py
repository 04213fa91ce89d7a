"""Serve one SSH connection to an environment."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncssh

from danlu.engine.ssh.forwarding import (
    AcceptedForwarder,
    HostNetworkConnector,
    NetworkConnector,
    OpenedConnection,
    UnixSocketOpener,
    forward_connection,
    loopback_address,
)
from danlu.engine.ssh.keys import SshKeys
from danlu.engine.ssh.session import SESSION_TASK, ChannelSession
from danlu.engine.ssh.ssh_config import DEFAULT_USER
from danlu.engine.types import ExecClient
from danlu.errors import OutsideError

#: Of those that every client has, the fastest: the connection does not leave the machine. Not
#: chacha20-poly1305, which OpenSSH's clients would choose.
_CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "aes128-ctr",
)
_LOGIN_TIMEOUT = 60
_CLOSE_TIMEOUT = 5.0
_WINDOW_SIZE = 2 << 20

logger = logging.getLogger(__name__)


async def serve_connection(
    sock: socket.socket,
    client: ExecClient,
    keys: SshKeys,
    *,
    network: NetworkConnector | None = None,
) -> None:
    """Serve one client on a connected socket until it disconnects.

    Only the keys of ``keys`` may log in. All programs that the client started are killed when it
    disconnects. Raises :class:`OutsideError` if the client did not log in.
    """
    connector = network or HostNetworkConnector()
    try:
        connection = await asyncssh.run_server(
            sock,
            server_factory=lambda: EnvironmentServer(client, connector),
            server_host_keys=[str(keys.host_key)],
            authorized_client_keys=[str(path) for path in _list_key_files(keys)],
            server_version="danlu",
            password_auth=False,
            kbdint_auth=False,
            public_key_auth=True,
            host_based_auth=False,
            allow_pty=True,
            line_editor=False,
            agent_forwarding=False,
            x11_forwarding=False,
            encoding=None,
            window=_WINDOW_SIZE,
            encryption_algs=list(_CIPHERS),
            compression_algs=["none"],
            login_timeout=_LOGIN_TIMEOUT,
            # The clients' ServerAliveInterval finds dead connections.
            keepalive_interval=0,
        )
    except (asyncssh.Error, OSError, TimeoutError) as error:
        raise OutsideError(f"the SSH client did not log in: {error}") from error
    await connection.wait_closed()
    await _finish_sessions()


def _list_key_files(keys: SshKeys) -> list[Path]:
    files = [keys.client_public_key]
    # asyncssh rejects an empty file.
    with suppress(OSError):
        if keys.authorized_keys.stat().st_size:
            files.append(keys.authorized_keys)
    return files


async def _finish_sessions() -> None:
    """Wait until the tasks of closed channels have disconnected from their programs."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    sessions = [task for task in tasks if task.get_name() == SESSION_TASK]
    if sessions:
        # What is inside may hang; its supervisor kills it when this process ends.
        await asyncio.wait(sessions, timeout=_CLOSE_TIMEOUT)


class EnvironmentServer(asyncssh.SSHServer):
    """Answers the requests of one connection."""

    def __init__(self, client: ExecClient, network: NetworkConnector) -> None:
        self._client = client
        self._network = network
        self._user = ""
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Keep the connection."""
        self._connection = conn

    def connection_lost(self, exc: Exception | None) -> None:
        """Record why the connection ended."""
        logger.info("disconnected%s", f": {exc}" if exc else "")

    def begin_auth(self, username: str) -> bool:
        """Require a key from everyone; the name selects the user of the image."""
        self._user = "" if username == DEFAULT_USER else username
        return True

    def auth_completed(self) -> None:
        """Record the connection."""
        logger.info("connected%s", f" as {self._user}" if self._user else "")

    def session_requested(self) -> ChannelSession:
        """Return the session of a new channel."""
        return ChannelSession(self._client, self._user)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Awaitable[Any]:
        """Open a TCP connection in the environment's network (``-L``, ``-D``)."""
        return forward_connection(self._network.connect_tcp(dest_host, dest_port))

    def unix_connection_requested(self, dest_path: str) -> Awaitable[Any]:
        """Open a connection to a Unix socket of the environment."""
        return forward_connection(
            UnixSocketOpener(self._client, self._user).open_connection("connect", dest_path)
        )

    async def server_requested(
        self, listen_host: str, listen_port: int
    ) -> asyncssh.SSHListener | bool:
        """Listen on a TCP port (``-R``), on the loopback interface only."""
        assert self._connection is not None
        if not self._network.shares_host:
            return False
        return await self._connection.forward_local_port(
            loopback_address(listen_host), listen_port, listen_host, listen_port
        )

    async def unix_server_requested(self, listen_path: str) -> asyncssh.SSHListener:
        """Listen on a Unix socket of the environment (``-R PATH:…``)."""
        connection = self._connection
        assert connection is not None

        async def open_channel(make_session: Callable[[], Any]) -> None:
            await connection.create_unix_connection(make_session, listen_path)

        async def accept(opened: OpenedConnection) -> None:
            assert opened.process is not None
            process = opened.process
            await asyncio.get_running_loop().create_connection(
                lambda: AcceptedForwarder(connection, open_channel, process),
                sock=opened.socket,
            )

        return await UnixSocketOpener(self._client, self._user).listen(listen_path, accept)
