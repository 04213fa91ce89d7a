"""HTTP between programs in a cluster: servers of metrics, probes and reports, and JSON requests."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from danlu.errors import DanluError, MachineError, OutsideError, TemporaryError, UsageError
from danlu.kube.config import load_pem
from danlu.kube.metrics import CONTENT_TYPE, MetricsRegistry, render_metrics

_log = logging.getLogger(__name__)
_MAX_CONNECTIONS = 16
_CHUNK_SIZE = 1 << 16

RenderResponse = Callable[[], tuple[int, str, str]]
"""Returns the code, the content type and the text of a response."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A received request; ``bearer`` is its token, empty if it has none."""

    method: str
    path: str
    body: bytes
    bearer: str = ""

    def __repr__(self) -> str:
        # Neither the body nor the token may reach a log.
        return f"HttpRequest({self.method} {self.path})"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A JSON response."""

    code: int
    body: bytes = b"{}"


RequestHandler = Callable[[HttpRequest], Awaitable[HttpResponse]]


# -- probes and metrics ---------------------------------------------------------------------------


def health_routes(unready_reason: Callable[[], str]) -> Mapping[str, RenderResponse]:
    """Return ``/healthz``, and ``/readyz``, which fails while ``unready_reason`` returns a text."""

    def readiness() -> tuple[int, str, str]:
        reason = unready_reason()
        return (500, "text/plain", reason + "\n") if reason else (200, "text/plain", "ok")

    return {"/healthz": lambda: (200, "text/plain", "ok"), "/readyz": readiness}


def metrics_routes(registry: MetricsRegistry) -> Mapping[str, RenderResponse]:
    """Return ``/metrics``."""
    return {"/metrics": lambda: (200, CONTENT_TYPE, render_metrics(registry))}


@asynccontextmanager
async def serve(address: str, routes: Mapping[str, RenderResponse]) -> AsyncIterator[int]:
    """Serve GET requests at ``HOST:PORT`` (``:8080`` for all hosts); yield the port.

    Raises :class:`MachineError` if the address cannot be bound.
    """
    app = web.Application()
    for path, render in routes.items():
        app.router.add_get(path, _text_handler(render))
    async with _run_app(app, address) as port:
        yield port


def _text_handler(render: RenderResponse) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        code, content_type, text = render()
        return web.Response(status=code, body=text.encode(), headers={"Content-Type": content_type})

    return handle


# -- requests of other programs -------------------------------------------------------------------


@asynccontextmanager
async def serve_https(
    address: str, handle: RequestHandler, *, certificate: bytes, max_bytes: int, too_large: str = ""
) -> AsyncIterator[int]:
    """Serve ``handle`` over HTTPS at ``HOST:PORT``; yield the port.

    If the handler raises one of our errors, the response is 503, as the cluster caused it; any
    other exception gives 500 without details.

    Args:
        certificate: PEM of the private key and its chain.
        max_bytes: Larger bodies are rejected unread, with the message ``too_large``.

    Raises:
        MachineError: The address cannot be bound.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pem(context, certificate)
    app = web.Application(client_max_size=max_bytes)

    async def respond(request: web.Request) -> web.Response:
        response = await _call_handler(handle, request, too_large)
        return web.Response(
            status=response.code, body=response.body, content_type="application/json"
        )

    app.router.add_route("*", "/{path:.*}", respond)
    async with _run_app(app, address, context) as port:
        yield port


async def _call_handler(
    handle: RequestHandler, request: web.Request, too_large: str
) -> HttpResponse:
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        return status_response(413, "RequestEntityTooLarge", too_large)
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    received = HttpRequest(request.method, request.path, body, bearer)
    try:
        return await handle(received)
    except DanluError as error:
        _log.warning("%s: %s", received, error)
        return status_response(503, "ServiceUnavailable", "the cluster cannot store this now")
    except Exception:
        _log.exception("%s", received)
        return status_response(500, "InternalError", "internal error of the operator")


def status_response(code: int, reason: str, message: str) -> HttpResponse:
    """Return an error as Kubernetes API servers do (meta/v1 Status)."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message}
    return HttpResponse(code, msgspec.json.encode({**status, "reason": reason, "code": code}))


@asynccontextmanager
async def _run_app(
    app: web.Application, address: str, context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    host, _, port = address.rpartition(":")
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            site = web.TCPSite(runner, host.strip("[]") or None, int(port), ssl_context=context)
            await site.start()
        except (OSError, ValueError) as error:
            raise MachineError(
                f"cannot listen on {address}: {error}",
                hint="check whether another operator is running on this machine",
            ) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


# -- requests to webhooks -------------------------------------------------------------------------


class JsonPoster:
    """POSTs JSON to one URL in the cluster; use it as an async context manager.

    Redirects are not followed and proxies are not used, as the server is inside the cluster. Error
    messages contain neither the request, nor the response, nor a password in the URL.

    Args:
        url: An http or https URL.
        seconds: The timeout of a request.
        ca: PEM certificates to trust, empty for this machine's.
        max_bytes: The size limit of a response.

    Raises:
        UsageError: The URL or the CA is invalid.
    """

    def __init__(self, url: str, *, seconds: float, ca: str = "", max_bytes: int = 1 << 20) -> None:
        self._url = _parse_url(url)
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._tls = _create_ssl_context(ca, self.name) if self._url.scheme == "https" else None

    @property
    def name(self) -> str:
        """The URL without user, password and query."""
        return str(self._url.with_user(None).with_query(None))

    async def __aenter__(self) -> JsonPoster:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_MAX_CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=self._seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def post(self, body: bytes) -> bytes:
        """Send ``body`` and return the body of the response.

        Raises:
            TemporaryError: The server did not respond in time, or failed.
            OutsideError: The server rejected the request, or its response is too large.
        """
        try:
            return await self._post_body(body)
        except TimeoutError as error:
            raise TemporaryError(f"{self.name} did not respond in {self._seconds:g} s") from error
        except aiohttp.ClientError as error:
            raise TemporaryError(f"cannot reach {self.name}: {type(error).__name__}") from error

    async def _post_body(self, body: bytes) -> bytes:
        tls = self._tls if self._tls is not None else True
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        async with self._session.post(
            self._url, data=body, headers=headers, ssl=tls, allow_redirects=False
        ) as response:
            if response.status >= 500 or response.status == 429:
                raise TemporaryError(f"{self.name} answered {response.status}")
            if not 200 <= response.status < 300:
                raise OutsideError(f"{self.name} answered {response.status}")
            result = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK_SIZE):
                result += chunk
                if len(result) > self._max_bytes:
                    raise OutsideError(f"{self.name} answered more than {self._max_bytes} bytes")
            return bytes(result)


def _parse_url(text: str) -> URL:
    try:
        url = URL(text)
    except ValueError as error:
        raise UsageError(f"invalid URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError("invalid URL: it must begin with http:// or https:// and a host")
    return url


def _create_ssl_context(ca: str, name: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=ca or None)
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"invalid CA for {name}: {error}", hint="it must be PEM") from error
