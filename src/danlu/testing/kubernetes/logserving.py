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

from danlu.testing.kubernetes.podlogs import LogQuery, Logs, NoLog, Standing, read

__all__ = ["answer", "kubelet_server", "standing_of"]

Object = Mapping[str, Any]
Stands = Callable[[str, str, str], Standing | None]
"""How a container stands, by namespace, pod and container."""


async def answer(
    request: web.Request,
    logs: Logs,
    container: str,
    *,
    standing: Callable[[], Standing | None],
    now: datetime,
) -> web.StreamResponse:
    """The log of one container; raises :class:`NoLog`, and ValueError for a bad query."""
    pieces = read(logs, container, LogQuery.of(request.query, now), standing)
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


def standing_of(pod: Object, container: str) -> Standing:
    """How a container of a pod's document stands."""
    uid = pod["metadata"]["uid"]
    for one in pod.get("status", {}).get("containerStatuses") or ():
        if one["name"] != container:
            continue
        state, run = one.get("state") or {}, one.get("restartCount", 0)
        if "running" in state:
            return Standing(uid, run, "running")
        if "terminated" in state or one.get("lastState"):
            return Standing(uid, run, "ended")
        return Standing(uid, run, "waiting", (state.get("waiting") or {}).get("reason", ""))
    return Standing(uid)


@asynccontextmanager
async def kubelet_server(
    logs: Logs, stands: Stands, now: Callable[[], datetime]
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
            return await answer(request, logs, place[2], standing=lambda: stands(*place), now=now())
        except (NoLog, ValueError) as error:
            return web.Response(status=400, text=str(error))

    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", handle)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=_certificate()).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
        # The server that asked keeps its connections, and TLS would wait for its word.
        for transport in open_:
            transport.abort()
        await asyncio.sleep(0)


def _certificate() -> ssl.SSLContext:
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
