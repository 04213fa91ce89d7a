"""Logs over HTTP: the fake's ``log`` of a pod, and the address of a kubelet that a server asks."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aiohttp import web

from tests.fakes.kubernetes.container_logs import (
    ContainerLogs,
    ContainerRun,
    LogQuery,
    LogUnavailable,
    read_log,
)

__all__ = ["container_run", "kubelet_server", "serve_log"]

Object = Mapping[str, Any]
FindContainerRun = Callable[[str, str, str], ContainerRun | None]
"""How a container stands, by namespace, pod and container."""


async def serve_log(
    request: web.Request,
    logs: ContainerLogs,
    container: str,
    *,
    standing: Callable[[], ContainerRun | None],
    now: datetime,
) -> web.StreamResponse:
    """The log of one container; raises :class:`LogUnavailable`, and ValueError for a bad query."""
    pieces = read_log(logs, container, LogQuery.of(request.query, now), standing)
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    begun = False
    try:
        async for piece in pieces:
            if not begun:
                await response.prepare(request)
                begun = True
            await response.write(piece)
        if not begun:
            await response.prepare(request)
    except ConnectionError:
        pass
    return response


def container_run(pod: Object, container: str) -> ContainerRun:
    """How a container of a pod's document stands."""
    uid = pod["metadata"]["uid"]
    for status in pod.get("status", {}).get("containerStatuses") or ():
        if status["name"] != container:
            continue
        state, run = status.get("state") or {}, status.get("restartCount", 0)
        if "running" in state:
            return ContainerRun(uid, run, "running")
        if "terminated" in state or status.get("lastState"):
            return ContainerRun(uid, run, "ended")
        return ContainerRun(uid, run, "waiting", (state.get("waiting") or {}).get("reason", ""))
    return ContainerRun(uid)


@asynccontextmanager
async def kubelet_server(
    logs: ContainerLogs, stands: FindContainerRun, now: Callable[[], datetime]
) -> AsyncIterator[int]:
    """What an API server asks a kubelet for logs, over HTTPS; gives the port.

    Its certificate is of its own making, with the program ``openssl``: servers verify a kubelet's
    only where they are told to.
    """
    open_: set[asyncio.Transport] = set()

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            open_.add(request.transport)
        place = [request.match_info[name] for name in ("namespace", "pod", "container")]
        try:
            return await serve_log(
                request, logs, place[2], standing=lambda: stands(*place), now=now()
            )
        except (LogUnavailable, ValueError) as error:
            return web.Response(status=400, text=str(error))

    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", handle)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=_create_tls_context()).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
        # The server that asked keeps its connections, and TLS would wait for its word.
        for transport in open_:
            transport.abort()
        await asyncio.sleep(0)


def _create_tls_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with TemporaryDirectory() as directory:
        key, certificate = Path(directory, "key"), Path(directory, "certificate")
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ]
        command += ["-nodes", "-days", "2", "-subj", "/CN=simulated"]
        command += ["-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        context.load_cert_chain(certificate, key)
    return context
