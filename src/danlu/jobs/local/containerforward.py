"""Ports of this machine's loopback that containers find at their own: progress, a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from anyio import to_thread

from danlu.sandbox import netns

__all__ = ["Forwards", "proxy_ports"]

_LOOPBACK = "127.0.0.1"
_LOCAL = (_LOOPBACK, "localhost")
_PIECE = 65536


class Forwards:
    """Listens at ``127.0.0.1`` of namespaces, and passes on to the same port of this machine's."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []

    async def add(self, namespace: Path, ports: Iterable[int]) -> None:
        """Begin for a namespace; it goes on until :meth:`close`."""
        for port in ports:
            listening = await to_thread.run_sync(_listening, namespace, port)
            serve = _Forward(port).serve
            self._servers.append(await asyncio.start_server(serve, sock=listening))

    async def close(self) -> None:
        """Listen no more."""
        for server in self._servers:
            server.close()
        self._servers.clear()


class _Forward:
    def __init__(self, port: int) -> None:
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        try:
            there_reader, there_writer = await asyncio.open_connection(_LOOPBACK, self._port)
        except OSError:
            writer.close()
            return
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_pump, reader, there_writer)
                group.start_soon(_pump, there_reader, writer)
        finally:
            there_writer.close()
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on until one side says that it sends no more, which is passed on too."""
    try:
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


def _listening(namespace: Path, port: int) -> socket.socket:
    return netns.inside(namespace, lambda: socket.create_server((_LOOPBACK, port)))


def proxy_ports(environment: Mapping[str, str]) -> tuple[int, ...]:
    """The ports of proxies that the variables of ``environment`` say are on this machine."""
    found = set()
    for name, value in environment.items():
        if name.lower().endswith("_proxy") and name.lower() != "no_proxy":
            with contextlib.suppress(ValueError):
                parts = urlsplit(value if "://" in value else f"http://{value}")
                if parts.hostname in _LOCAL and parts.port:
                    found.add(parts.port)
    return tuple(sorted(found))
