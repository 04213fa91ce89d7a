"""Reach servers at this machine's loopback address from network namespaces, such as a proxy."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from anyio import to_thread

from danlu.sandbox import netns

_LOOPBACK = "127.0.0.1"
_LOCAL_HOSTS = (_LOOPBACK, "localhost")
_CHUNK_SIZE = 65536


class LoopbackForwarder:
    """Forwards ports of namespaces' ``127.0.0.1`` to the same ports of this machine's."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []

    async def add(self, namespace: Path, ports: Iterable[int]) -> None:
        """Forward these ports of a namespace until :meth:`close`."""
        for port in ports:
            listener = await to_thread.run_sync(_listen_inside, namespace, port)
            serve = _PortForward(port).serve
            self._servers.append(await asyncio.start_server(serve, sock=listener))

    async def close(self) -> None:
        """Stop listening."""
        for server in self._servers:
            server.close()
        self._servers.clear()


class _PortForward:
    def __init__(self, port: int) -> None:
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            host_reader, host_writer = await asyncio.open_connection(_LOOPBACK, self._port)
        except OSError:
            writer.close()
            return
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_copy_stream, reader, host_writer)
                group.start_soon(_copy_stream, host_reader, writer)
        finally:
            host_writer.close()
            writer.close()


async def _copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until EOF, and pass that on, so that connections may be half-closed."""
    try:
        while data := await reader.read(_CHUNK_SIZE):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


def _listen_inside(namespace: Path, port: int) -> socket.socket:
    return netns.run_in_namespace(namespace, lambda: socket.create_server((_LOOPBACK, port)))


def proxy_ports(environment: Mapping[str, str]) -> tuple[int, ...]:
    """Return the local ports of the proxies that environment variables name."""
    ports = set()
    for name, value in environment.items():
        if name.lower().endswith("_proxy") and name.lower() != "no_proxy":
            with suppress(ValueError):
                url = urlsplit(value if "://" in value else f"http://{value}")
                if url.hostname in _LOCAL_HOSTS and url.port:
                    ports.add(url.port)
    return tuple(sorted(ports))
