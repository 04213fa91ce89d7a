"""Logs over HTTP: the fake's ``pods/log``, and a kubelet server for a real API server."""

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
    find_run: Callable[[], ContainerRun | None],
    now: datetime,
) -> web.StreamResponse:
    """Answer with the log of a container; raises LogUnavailable, and ValueError for a bad query."""
    pieces = read_log(logs, container, LogQuery.of(request.query, now), find_run)
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
    """Return the latest run of a container from the status of its pod."""
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
    logs: ContainerLogs, find_container_run: FindContainerRun, now: Callable[[], datetime]
) -> AsyncIterator[int]:
    """Serve the logs that an API server requests from a kubelet, over HTTPS; yields the port.

    The certificate is self-signed with the program ``openssl``: API servers verify those of
    kubelets only if configured to.
    """
    open_: set[asyncio.Transport] = set()

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            open_.add(request.transport)
        key = [request.match_info[name] for name in ("namespace", "pod", "container")]
        try:
            return await serve_log(
                request, logs, key[2], find_run=lambda: find_container_run(*key), now=now()
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
        # The API server keeps its connections, and TLS would wait for its close_notify.
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
