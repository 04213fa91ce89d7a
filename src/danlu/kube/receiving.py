"""Requests that others make of a program in the cluster, over HTTPS."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from aiohttp import web

from danlu.errors import DanluError, MachineError
from danlu.kube.access import load_pem

__all__ = ["Handle", "Received", "Reply", "refusal", "serve_requests"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Received:
    """A request; ``bearer`` is its token, empty without one. It is not shown."""

    method: str
    path: str
    body: bytes
    bearer: str = ""

    def __repr__(self) -> str:
        return f"Received({self.method} {self.path})"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer in JSON."""

    code: int
    body: bytes = b"{}"


Handle = Callable[[Received], Awaitable[Reply]]


def refusal(code: int, reason: str, message: str) -> Reply:
    """A refusal as Kubernetes' servers give it (meta/v1 Status)."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message}
    return Reply(code, msgspec.json.encode({**status, "reason": reason, "code": code}))


@asynccontextmanager
async def serve_requests(
    address: str, handle: Handle, *, certificate: bytes, most: int, too_large: str = ""
) -> AsyncIterator[int]:
    """Let ``handle`` answer at ``HOST:PORT`` within the context; gives the port.

    ``certificate`` is PEM of the key and its chain. A body of more than ``most`` bytes is refused
    with the words ``too_large``, unread. What ``handle`` raises of ours is answered as 503, for it
    is the cluster's; defects as 500, without a word of what they are.

    Raises :class:`MachineError` where the address cannot be had.
    """
    host, _, port = address.rpartition(":")
    app = web.Application(client_max_size=most)
    app.router.add_route("*", "/{path:.*}", _handler(handle, too_large))
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            site = web.TCPSite(
                runner, host.strip("[]") or None, int(port), ssl_context=_tls(certificate)
            )
            await site.start()
        except (OSError, ValueError) as error:
            raise MachineError(
                f"cannot listen at {address}: {error}", hint="is another operator running here?"
            ) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _tls(certificate: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pem(context, certificate)
    return context


def _handler(
    handle: Handle, too_large: str
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.Response:
        reply = await _answered(handle, request, too_large)
        return web.Response(status=reply.code, body=reply.body, content_type="application/json")

    return answer


async def _answered(handle: Handle, request: web.Request, too_large: str) -> Reply:
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        return refusal(413, "RequestEntityTooLarge", too_large)
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    received = Received(request.method, request.path, body, bearer)
    try:
        return await handle(received)
    except DanluError as error:
        _log.warning("%s: %s", received, error)
        return refusal(503, "ServiceUnavailable", "the cluster cannot keep it now")
    except Exception:
        _log.exception("%s", received)
        return refusal(500, "InternalError", "something is wrong with the operator")
