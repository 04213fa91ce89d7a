"""Requests to one API server: connected, identified, kept within limits, waited for when asked."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import aiohttp
from yarl import URL

from danlu.kube.access import Access, Certificate, Identity, tls_of
from danlu.kube.clock import REAL, sleep
from danlu.kube.failures import (
    ApiError,
    TemporaryApiError,
    Unauthorized,
    error_of,
    translated,
)
from danlu.kube.limits import TokenBucket
from danlu.kube.types import Clock

__all__ = ["Meter", "Request", "Transport"]

Meter = Callable[[str, int, float], None]
"""Told of each attempt: method, code (0 where no answer came), seconds to the answer's head."""

_CONNECT_SECONDS = 30.0
#: How often a request is sent again because the server named a time (client-go, rest/request.go).
_REPEATS = 10
_LONGEST_WAIT = 120.0
_PIECE = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; ``what`` names in errors what it is about. ``seconds`` limit its whole answer.

    Empty values of ``query`` are left out.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = "application/json"
    what: str = ""
    seconds: float | None = 60.0


class Transport:
    """One server's connections; use as an async context manager.

    A request waits for ``limit`` before it is sent. An answer that names a time to come back
    (Retry-After) is waited for, up to ten times; a 401 makes the credentials be asked once more.
    Everything else is raised at once: :class:`ApiError`, or :class:`ConnectionLost` where no answer
    came.
    """

    def __init__(
        self,
        access: Access,
        *,
        limit: TokenBucket | None = None,
        connections: int = 100,
        clock: Clock = REAL,
        meter: Meter | None = None,
        agent: str = "danlu",
    ) -> None:
        self.access = access
        self.clock = clock
        self._base = URL(access.server)
        self._limit = limit
        self._connections = connections
        self._meter = meter
        self._agent = agent
        self._tls: tuple[Certificate | None, ssl.SSLContext] | None = None

    async def __aenter__(self) -> Transport:
        self._session = aiohttp.ClientSession(
            connector=_Connector(limit=self._connections),
            headers={"Accept": "application/json", "User-Agent": self._agent},
            trust_env=not self.access.proxy and not _is_loopback(self._base.host or ""),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, request: Request) -> bytes:
        """The whole body of a successful answer."""
        async with self.stream(request) as response:
            return await response.read()

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful answer, its body still to be read."""
        with translated(self.access.server):
            response = await self._answered(request)
            try:
                yield response
            finally:
                response.release() if response.content.at_eof() else response.close()

    @asynccontextmanager
    async def websocket(
        self, request: Request, protocols: tuple[str, ...]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A connection over which both sides talk; a refusal raises as other requests' do."""
        identity = await self.access.credentials.identity()
        with translated(self.access.server):
            try:
                socket = await self._session.ws_connect(
                    self._url(request),
                    protocols=protocols,
                    headers=identity.headers,
                    ssl=self._tls_for(identity),
                    server_hostname=self.access.server_name or None,
                    proxy=self.access.proxy or None,
                    max_msg_size=0,
                )
            except aiohttp.WSServerHandshakeError as error:
                raise error_of(error.status, error.message.encode(), what=request.what) from error
            async with socket:
                yield socket

    async def _answered(self, request: Request) -> aiohttp.ClientResponse:
        refused = 0
        for repeat in range(_REPEATS + 1):
            if self._limit is not None:
                await self._limit.acquire()
            response = await self._measured(request)
            if response.status < 400:
                return response
            error = await _error(response, request)
            if isinstance(error, Unauthorized) and not refused:
                refused += 1
                if not self.access.credentials.refused():
                    raise error
            elif _names_a_time(error) and repeat < _REPEATS:
                await sleep(self.clock, min(error.retry_after, _LONGEST_WAIT))
            else:
                raise error
        raise AssertionError("the last attempt returns or raises")

    async def _measured(self, request: Request) -> aiohttp.ClientResponse:
        identity = await self.access.credentials.identity()
        begun, code = self.clock.monotonic(), 0
        try:
            response = await self._request(request, identity)
            code = response.status
            return response
        finally:
            if self._meter is not None:
                self._meter(request.method, code, self.clock.monotonic() - begun)

    async def _request(self, request: Request, identity: Identity) -> aiohttp.ClientResponse:
        headers = list(identity.headers)
        if request.body:
            headers.append(("Content-Type", request.content_type))
        return await self._session.request(
            request.method,
            self._url(request),
            headers=headers,
            # A big one in pieces, so that others have their turn.
            data=BytesIO(request.body) if len(request.body) > _PIECE else request.body or None,
            ssl=self._tls_for(identity),
            server_hostname=self.access.server_name or None,
            proxy=self.access.proxy or None,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=request.seconds, sock_connect=_CONNECT_SECONDS),
        )

    def _url(self, request: Request) -> URL:
        path = self._base.raw_path.rstrip("/") + request.path
        given = {name: value for name, value in request.query.items() if value}
        return self._base.with_path(path, encoded=True).with_query(given)

    def _tls_for(self, identity: Identity) -> ssl.SSLContext | bool:
        if self._base.scheme != "https":
            return True
        if self._tls is None or self._tls[0] != identity.certificate:
            self._tls = (identity.certificate, tls_of(self.access, identity.certificate))
        return self._tls[1]


async def _error(response: aiohttp.ClientResponse, request: Request) -> ApiError:
    after = response.headers.get("Retry-After", "")
    try:
        body = await response.read()
    except aiohttp.ClientError:
        body = b""
    return error_of(
        response.status,
        body,
        what=request.what,
        retry_after=float(after) if after.isdigit() else 0.0,
    )


def _names_a_time(error: ApiError) -> bool:
    return isinstance(error, TemporaryApiError) and error.retry_after > 0


def _is_loopback(host: str) -> bool:
    # A proxy cannot reach this machine's servers.
    return host in ("localhost", "::1") or host.startswith("127.")


class _Connector(aiohttp.TCPConnector):
    """Ends connections that cannot be used again at once, of requests that were cancelled too.

    A TLS connection that is closed politely waits for the server's last word, and may outlive the
    event loop.
    """

    def _release(self, key: Any, protocol: Any, **how: Any) -> None:
        if how.get("should_close") and protocol.transport is not None:
            protocol.transport.abort()
        super()._release(key, protocol, **how)
