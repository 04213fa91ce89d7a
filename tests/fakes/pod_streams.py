"""An API server whose pods are this machine: programs run here, ports are those of this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from danlu.kube.config import ClusterConfig

_END_INPUT = b"\xff\x00"


@dataclass
class PodStreamsServer:
    """The received requests, and faults to answer with."""

    access: ClusterConfig
    queries: list[dict[str, list[str]]] = field(default_factory=list)
    refusal: int = 0
    protocols: tuple[str, ...] = ("v5.channel.k8s.io", "v4.channel.k8s.io")

    async def run_program(self, request: web.Request) -> web.StreamResponse:
        """The subresource ``exec``."""
        query = {name: request.query.getall(name) for name in request.query}
        self.queries.append(query)
        if self.refusal:
            return web.json_response({"message": "no"}, status=self.refusal)
        socket = web.WebSocketResponse(protocols=self.protocols)
        await socket.prepare(request)
        process = await asyncio.create_subprocess_exec(
            *query["command"],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        reading = asyncio.ensure_future(_copy_input(socket, process.stdin))
        try:
            await asyncio.gather(
                _copy_output(process.stdout, socket, 1), _copy_output(process.stderr, socket, 2)
            )
            code = await process.wait()
            with suppress(ConnectionError):
                await socket.send_bytes(b"\x03" + json.dumps(_describe_exit(code)).encode())
                await socket.close()
        finally:
            # The handler is cancelled when the server stops before the client has read everything.
            reading.cancel()
            if process.returncode is None:
                process.kill()
                await process.wait()
        return socket

    async def connect_port(self, request: web.Request) -> web.StreamResponse:
        """The subresource ``portforward``."""
        port = int(request.query["ports"])
        socket = web.WebSocketResponse(protocols=self.protocols)
        await socket.prepare(request)
        prefix = port.to_bytes(2, "little")
        await socket.send_bytes(b"\x00" + prefix)
        await socket.send_bytes(b"\x01" + prefix)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError as error:
            await socket.send_bytes(b"\x01" + f"error forwarding port: {error}".encode())
            return socket
        reading = asyncio.ensure_future(_copy_input(socket, writer))
        await _copy_output(reader, socket, 0)
        await socket.close()
        reading.cancel()
        writer.close()
        return socket


async def _copy_input(socket: web.WebSocketResponse, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        async for message in socket:
            if message.type != WSMsgType.BINARY:
                continue
            if message.data == _END_INPUT:
                writer.close()
            elif message.data[0] == 0:
                writer.write(message.data[1:])
                await writer.drain()


async def _copy_output(
    reader: asyncio.StreamReader, socket: web.WebSocketResponse, channel: int
) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 15):
            await socket.send_bytes(bytes([channel]) + data)


def _describe_exit(code: int) -> dict[str, object]:
    if code == 0:
        return {"status": "Success"}
    number = str(code if code > 0 else 128 - code)
    causes = [{"reason": "ExitCode", "message": number}]
    return {
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: {number}",
        "details": {"causes": causes},
    }


@asynccontextmanager
async def serve_pod_streams() -> AsyncIterator[PodStreamsServer]:
    """Serve on a free port."""
    server = PodStreamsServer(ClusterConfig(server=""))
    app = web.Application()
    pod = "/api/v1/namespaces/{namespace}/pods/{pod}"
    app.router.add_get(f"{pod}/exec", server.run_program)
    app.router.add_get(f"{pod}/portforward", server.connect_port)
    async with TestServer(app) as running:
        server.access = ClusterConfig(server=str(running.make_url("")).rstrip("/"))
        yield server
