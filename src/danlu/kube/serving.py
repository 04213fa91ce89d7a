"""What a program tells others about itself over HTTP: that it lives, is ready, and its numbers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from danlu.errors import MachineError
from danlu.kube.metrics import CONTENT_TYPE, Metrics

__all__ = ["health_routes", "metrics_routes", "serve"]

Answer = Callable[[], tuple[int, str, str]]
"""Gives code, content type and text."""


def health_routes(ready: Callable[[], str]) -> Mapping[str, Answer]:
    """``/healthz``, and ``/readyz`` while ``ready`` gives no reason why not."""

    def readiness() -> tuple[int, str, str]:
        reason = ready()
        return (500, "text/plain", reason + "\n") if reason else (200, "text/plain", "ok")

    return {"/healthz": lambda: (200, "text/plain", "ok"), "/readyz": readiness}


def metrics_routes(metrics: Metrics) -> Mapping[str, Answer]:
    """``/metrics``."""
    return {"/metrics": lambda: (200, CONTENT_TYPE, metrics.text())}


@asynccontextmanager
async def serve(address: str, routes: Mapping[str, Answer]) -> AsyncIterator[int]:
    """Answer at ``HOST:PORT`` (``:8080`` for any host) within the context; gives the port.

    Raises :class:`MachineError` where the address cannot be had.
    """
    host, _, port = address.rpartition(":")
    app = web.Application()
    for path, answer in routes.items():
        app.router.add_get(path, _handler(answer))
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
        except (OSError, ValueError) as error:
            raise MachineError(
                f"cannot listen at {address}: {error}", hint="is another operator running here?"
            ) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _handler(answer: Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        code, content_type, text = answer()
        return web.Response(status=code, body=text.encode(), headers={"Content-Type": content_type})

    return handle
