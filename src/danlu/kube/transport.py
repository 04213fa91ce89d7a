"""HTTP requests to one API server: authenticated, rate-limited, and retried if the server asks."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import aiohttp
import anyio
from yarl import URL

from danlu.errors import OutsideError
from danlu.kube.clock import REAL_CLOCK, Clock, sleep
from danlu.kube.config import (
    ClientCertificate,
    ClientIdentity,
    ClusterConfig,
    create_ssl_context,
)
from danlu.kube.errors import (
    ApiError,
    ConnectionLost,
    TemporaryApiError,
    Unauthorized,
    error_from_response,
)
from danlu.kube.priorities import DEFAULT_PRIORITY
from danlu.kube.ratelimit import TokenBucket
from danlu.util.sanitize import escape_unprintable

RequestObserver = Callable[[str, int, float], None]
"""Called for each attempt with the method, the code (0 without a response), and the seconds until
the headers of the response."""

_CONNECT_TIMEOUT = 30.0
#: How often a request is retried because the response had Retry-After (client-go, rest/request.go).
_MAX_RETRIES = 10
_MAX_RETRY_AFTER = 120.0
_CHUNK_SIZE = 1 << 19
#: Finds a connection that broke without a word (client-go, tools/remotecommand/websocket.go).
_HEARTBEAT_SECONDS = 30.0
_MAX_MESSAGE_SIZE = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One request.

    Args:
        query: Parameters; those with empty values are left out.
        what: What the request does, for error messages (``list pods``).
        seconds: The timeout of the whole response, None for none.
        priority: Requests of a low priority leave room for others.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = "application/json"
    what: str = ""
    seconds: float | None = 60.0
    priority: int = DEFAULT_PRIORITY


class Transport:
    """The connections to one server; use it as an async context manager.

    A request waits for ``limit`` before it is sent. If a response has a Retry-After header, the
    request is sent again after that time, up to ten times; after a 401 the credentials are renewed
    once. Every other failure is raised at once, as :class:`ApiError` or :class:`ConnectionLost`.

    Requests below the default priority use at most half of the connections, so that others always
    find a free one.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        limit: TokenBucket | None = None,
        connections: int = 100,
        clock: Clock = REAL_CLOCK,
        meter: RequestObserver | None = None,
        agent: str = "danlu",
    ) -> None:
        self.config = config
        self.clock = clock
        self._base = URL(config.server)
        self._limit = limit
        self._connections = connections
        self._low_priority_slots = anyio.Semaphore(max(1, connections // 2))
        self._meter = meter
        self._agent = agent
        self._tls: tuple[ClientCertificate | None, ssl.SSLContext] | None = None

    async def __aenter__(self) -> Transport:
        self._session = aiohttp.ClientSession(
            connector=_AbortingConnector(limit=self._connections),
            headers={"Accept": "application/json", "User-Agent": self._agent},
            trust_env=not self.config.proxy and not _is_loopback(self._base.host or ""),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, request: ApiRequest) -> bytes:
        """Return the whole body of a successful response."""
        async with self.stream(request) as response:
            return await response.read()

    @asynccontextmanager
    async def stream(self, request: ApiRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a successful response whose body has not been read yet."""
        with translate_client_errors(self.config.server):
            async with AsyncExitStack() as stack:
                if request.priority < DEFAULT_PRIORITY:
                    await stack.enter_async_context(self._low_priority_slots)
                response = await self._send_with_retries(request)
                try:
                    yield response
                finally:
                    response.release() if response.content.at_eof() else response.close()

    async def open_websocket(
        self, path: str, query: Sequence[tuple[str, str]], *, protocols: Sequence[str], what: str
    ) -> aiohttp.ClientWebSocketResponse:
        """Return a WebSocket of a subresource such as ``exec``; the caller closes it.

        Raises :class:`ApiError` if the server refuses.
        """
        for renewed in (False, True):
            identity = await self.config.credentials.get_identity()
            with translate_client_errors(self.config.server):
                try:
                    return await self._session.ws_connect(
                        self._base.with_path(
                            self._base.raw_path.rstrip("/") + path, encoded=True
                        ).with_query(query),
                        protocols=protocols,
                        # Streams have no media type: with that of objects the answer is 406.
                        headers=[*identity.headers, ("Accept", "*/*")],
                        ssl=self._ssl_context_for(identity),
                        server_hostname=self.config.server_name or None,
                        proxy=self.config.proxy or None,
                        heartbeat=_HEARTBEAT_SECONDS,
                        max_msg_size=_MAX_MESSAGE_SIZE,
                    )
                except aiohttp.WSServerHandshakeError as error:
                    failure = error_from_response(error.status, b"", what=what)
            retry = isinstance(failure, Unauthorized) and not renewed
            if not retry or not self.config.credentials.invalidate():
                raise failure
        raise AssertionError("the last attempt returns or raises")

    async def _send_with_retries(self, request: ApiRequest) -> aiohttp.ClientResponse:
        unauthorized = 0
        for attempt in range(_MAX_RETRIES + 1):
            if self._limit is not None:
                await self._limit.acquire(priority=request.priority)
            response = await self._send_with_metrics(request)
            if response.status < 400:
                return response
            error = await _read_error(response, request)
            if isinstance(error, Unauthorized) and not unauthorized:
                unauthorized += 1
                # The token may have expired; its file or plug-in gets one chance to provide
                # another.
                if not self.config.credentials.invalidate():
                    raise error
            elif _has_retry_after(error) and attempt < _MAX_RETRIES:
                await sleep(self.clock, min(error.retry_after, _MAX_RETRY_AFTER))
            else:
                raise error
        raise AssertionError("the last attempt returns or raises")

    async def _send_with_metrics(self, request: ApiRequest) -> aiohttp.ClientResponse:
        identity = await self.config.credentials.get_identity()
        begun, code = self.clock.monotonic(), 0
        try:
            response = await self._send_once(request, identity)
            code = response.status
            return response
        finally:
            if self._meter is not None:
                self._meter(request.method, code, self.clock.monotonic() - begun)

    async def _send_once(
        self, request: ApiRequest, identity: ClientIdentity
    ) -> aiohttp.ClientResponse:
        headers = list(identity.headers)
        if request.body:
            headers.append(("Content-Type", request.content_type))
        return await self._session.request(
            request.method,
            self._build_url(request),
            headers=headers,
            # A large body goes out in chunks, so that it does not block the event loop.
            data=BytesIO(request.body) if len(request.body) > _CHUNK_SIZE else request.body or None,
            ssl=self._ssl_context_for(identity),
            server_hostname=self.config.server_name or None,
            proxy=self.config.proxy or None,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=request.seconds, sock_connect=_CONNECT_TIMEOUT),
        )

    def _build_url(self, request: ApiRequest) -> URL:
        path = self._base.raw_path.rstrip("/") + request.path
        query = {name: value for name, value in request.query.items() if value}
        return self._base.with_path(path, encoded=True).with_query(query)

    def _ssl_context_for(self, identity: ClientIdentity) -> ssl.SSLContext | bool:
        if self._base.scheme != "https":
            return True
        if self._tls is None or self._tls[0] != identity.certificate:
            context = create_ssl_context(self.config, identity.certificate)
            self._tls = (identity.certificate, context)
        return self._tls[1]


@contextmanager
def translate_client_errors(server: str) -> Iterator[None]:
    """Turn the exceptions of aiohttp into :class:`ConnectionLost` and :class:`OutsideError`."""
    try:
        yield
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
        raise OutsideError(
            f"cannot verify the certificate of API server {server}: {_first_line(error)}",
            hint="its CA must be certificate-authority-data in the kubeconfig",
        ) from error
    except aiohttp.ClientConnectorError as error:
        raise ConnectionLost(
            f"cannot reach API server {server}: {_first_line(error.os_error)}",
            hint="check that the cluster is running and that the kubeconfig's context is right",
        ) from error
    except TimeoutError as error:
        # Must come before ClientConnectionError: some of aiohttp's timeouts are both.
        raise ConnectionLost(
            f"API server {server} timed out",
            hint="check that the cluster is running and reachable from this machine",
        ) from error
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        raise ConnectionLost(
            f"API server {server} closed the connection: {_first_line(error)}"
        ) from error
    except aiohttp.ClientError as error:
        raise OutsideError(
            f"invalid response from API server {server}: {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return escape_unprintable(lines[0]) if lines else type(error).__name__


async def _read_error(response: aiohttp.ClientResponse, request: ApiRequest) -> ApiError:
    after = response.headers.get("Retry-After", "")
    try:
        body = await response.read()
    except aiohttp.ClientError:
        body = b""
    return error_from_response(
        response.status,
        body,
        what=request.what,
        retry_after=float(after) if after.isdigit() else 0.0,
    )


def _has_retry_after(error: ApiError) -> bool:
    return isinstance(error, TemporaryApiError) and error.retry_after > 0


def _is_loopback(host: str) -> bool:
    # A proxy cannot reach servers on this machine.
    return host in ("localhost", "::1") or host.startswith("127.")


class _AbortingConnector(aiohttp.TCPConnector):
    """Aborts connections that cannot be reused: of cancelled requests, or if the server closes.

    A graceful TLS shutdown waits for the server and may outlive the event loop.
    """

    def _release(self, key: Any, protocol: Any, **options: Any) -> None:
        is_over = options.get("should_close") or protocol.should_close
        if is_over and protocol.transport is not None:
            protocol.transport.abort()
        super()._release(key, protocol, **options)
