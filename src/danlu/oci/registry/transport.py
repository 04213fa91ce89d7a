"""Requests to one registry: connected, authorized, tried again."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
from yarl import URL

from danlu.errors import OutsideError, TemporaryError
from danlu.oci.registry.auth import Authorizer
from danlu.oci.registry.credentials import Credentials, docker_credentials
from danlu.oci.registry.endpoint import Endpoint
from danlu.oci.registry.failures import failure, translated

__all__ = ["Body", "Transport"]

#: Bytes, or what makes a body anew for each attempt.
Body = bytes | Callable[[], Any]

_CONNECT_SECONDS = 30
_READ_SECONDS = 60


class Transport:
    """One registry's connections; use as an async context manager."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        lookup: Callable[[str], Awaitable[Credentials | None]] = docker_credentials,
        connections: int = 8,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self.host = endpoint.host
        self._lookup = lookup
        self._connections = connections
        self._clock = clock
        self._base: URL | None = None
        self._lock = anyio.Lock()

    async def __aenter__(self) -> Transport:
        tls = self.endpoint.tls()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=self._connections),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS
            ),
            # Digests are of bytes as they are sent.
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "danlu"},
            # A proxy cannot reach this machine's registry.
            trust_env=not self.endpoint.is_local,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._auth = Authorizer(self._session, self.host, self._lookup, clock=self._clock)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def base(self) -> URL:
        """The registry's address, found by its first answer; raises where there is none."""
        async with self._lock:
            if self._base is None:
                self._base = await self._probe()
                self._auth.may_speak_plainly = self._base.scheme == "http"
            return self._base

    async def _probe(self) -> URL:
        schemes = self.endpoint.schemes
        for number, scheme in enumerate(schemes):
            base = URL(f"{scheme}://{self.endpoint.address}")
            try:
                with translated(self.host):
                    async with self._session.get(base / "v2" / "") as response:
                        await self._look(response)
                        return base
            except (OutsideError, TemporaryError):
                if number + 1 == len(schemes):
                    raise
        raise AssertionError("a registry has a scheme")

    async def _look(self, response: aiohttp.ClientResponse) -> None:
        if response.status == 401:
            self._auth.challenged(response.headers.getall("WWW-Authenticate", []))
        elif response.status >= 500 or response.status == 429:
            raise await failure(response, host=self.host, what="its version")

    def same_origin(self, url: URL) -> bool:
        """Whether credentials may go to ``url``."""
        return self._base is not None and url.origin() == self._base.origin()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        target: str | URL,
        *,
        scope: str,
        what: str,
        ok: tuple[int, ...] = (200,),
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request to a path below ``/v2/``, or to an address the registry gave us.

        ``what`` names in errors what is asked for. Answers not in ``ok`` raise; a 401 is answered
        with authorization once.
        """
        base = await self.base()
        url = base.joinpath("v2", target, encoded=True) if isinstance(target, str) else target
        with translated(self.host):
            for last in (False, True):
                async with self._send(method, url, scope, headers, body) as response:
                    if response.status == 401 and not last and self._ask_again(response, scope):
                        continue
                    if response.status not in ok:
                        raise await failure(response, host=self.host, what=what)
                    yield response
                    return

    def _ask_again(self, response: aiohttp.ClientResponse, scope: str) -> bool:
        if not self.same_origin(response.url):
            # A host we were only sent to must not say where our password goes.
            return False
        self._auth.forget(scope)
        return self._auth.challenged(response.headers.getall("WWW-Authenticate", []))

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        url: URL,
        scope: str,
        headers: Mapping[str, str] | None,
        body: Body | None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        sent = dict(headers or {})
        if self.same_origin(url):
            authorization = await self._auth.header(scope)
            if authorization is not None:
                sent["Authorization"] = authorization
        data = body() if callable(body) else body
        # A body that is read once cannot be sent again to where a redirect leads.
        follow = method in ("GET", "HEAD")
        async with self._session.request(
            method, url, headers=sent, data=data, allow_redirects=follow
        ) as response:
            yield response
