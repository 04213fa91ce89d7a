"""A private network: nothing but an environment's forwarded ports can be reached from outside.

slirp4netns connects it to the Internet, and servers at this machine's loopback address that the
environment needs (a proxy) are forwarded into it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from anyio import to_thread

from danlu.engine.loopback_forwarder import LoopbackForwarder, proxy_ports
from danlu.engine.slirp_network import connect_namespace, render_resolver
from danlu.errors import MachineError, OutsideError
from danlu.sandbox import netns, runtime_spec
from danlu.sandbox.types import JoinedNetwork

# It hides a network of the same range from this environment only.
_CIDR = "10.214.0.0/24"
# libslirp always takes the third address of the network.
_NAME_SERVER = "10.214.0.3"
_LOOPBACK = "127.0.0.1"
_CHUNK_SIZE = 65536


class PrivateNetwork:
    """The network namespace of one environment, in a new directory.

    Requires :func:`danlu.sandbox.userns.enter`.
    """

    def __init__(self, directory: Path) -> None:
        self.warnings: list[str] = []
        self._directory = directory
        self._namespace = directory / "namespace"
        self._forwarder = LoopbackForwarder()

    async def open(self, environment: Mapping[str, str], resources: ExitStack) -> JoinedNetwork:
        """Create the network, which is removed when ``resources`` closes.

        ``environment`` are the variables of programs inside, which may name proxies. Raises
        :class:`MachineError` if this machine does not allow it.
        """
        self._directory.mkdir()
        try:
            await to_thread.run_sync(netns.create_namespace, self._namespace)
        except OSError as error:
            raise MachineError(
                f"cannot create a private network: {error.strerror}",
                hint="use the machine's: `--network host`",
            ) from error
        resources.callback(netns.remove_namespace, self._namespace)
        resolver = ""
        try:
            slirp = await connect_namespace(
                self._namespace, "eth0", "--configure", cidr=_CIDR, log=self._directory / "log"
            )
            resources.callback(slirp.kill)
            resolver = render_resolver(_NAME_SERVER)
        except MachineError as error:
            self.warnings.append(f"network: the Internet cannot be reached: {error.message}")
        await self._forwarder.add(self._namespace, proxy_ports(environment))
        host = runtime_spec.HOSTNAME
        return JoinedNetwork(self._namespace, host, {host: _LOOPBACK}, resolver)

    async def open_port(self, port: int) -> LocalConnection:
        """Connect to a port inside; raises :class:`OutsideError` if nothing listens there."""
        # A socket stays in the network namespace in which it was created.
        connection = netns.run_in_namespace(
            self._namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        )
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (_LOOPBACK, port))
            reader, writer = await asyncio.open_connection(sock=connection)
        except OSError as error:
            connection.close()
            raise OutsideError(f"cannot connect to port {port}: {error.strerror}") from error
        return LocalConnection(reader, writer)


class LocalConnection:
    """A connection to a port of a network namespace on this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """See :class:`~danlu.engine.types.PortConnection`."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise OutsideError(f"the connection was lost: {error}") from error

    async def receive(self) -> AsyncIterator[bytes]:
        """See :class:`~danlu.engine.types.PortConnection`."""
        try:
            while data := await self._reader.read(_CHUNK_SIZE):
                yield data
        except OSError as error:
            raise OutsideError(f"the connection was lost: {error}") from error

    async def close(self) -> None:
        """See :class:`~danlu.engine.types.PortConnection`."""
        self._writer.close()
