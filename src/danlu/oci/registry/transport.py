"""HTTP requests to one registry: scheme detection, TLS, authorization."""

from __future__ import annotations

import ipaddress
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import msgspec
from yarl import URL

from danlu.errors import OutsideError, TemporaryError, UsageError
from danlu.oci.registry.auth import Authorizer
from danlu.oci.registry.credentials import CredentialLookup, find_docker_credentials
from danlu.oci.registry.errors import is_expired_login, response_error, translate_client_errors

#: References to Docker Hub name one host, and another one serves them.
_SERVER_HOSTS = {"docker.io": "registry-1.docker.io"}

#: Bytes, or a function that returns a new body for each attempt.
RequestBody = bytes | Callable[[], Any]

_CONNECT_TIMEOUT = 30
READ_TIMEOUT = 60


class RegistryEndpoint(msgspec.Struct, frozen=True):
    """A registry, by the host (and port) that references name.

    ``insecure`` allows unverified certificates and plain HTTP; both are always allowed for a
    registry on this machine. ``ca`` is a file of additional certificates to trust. ``prefix`` is
    prepended to every repository.
    """

    host: str
    insecure: bool = False
    ca: str = ""
    prefix: str = ""

    @property
    def address(self) -> str:
        """The host and port to connect to."""
        return _SERVER_HOSTS.get(self.host, self.host)

    @property
    def is_local(self) -> bool:
        """Whether the registry runs on this machine."""
        name = self.address.rsplit(":", 1)[0] if not self.address.endswith("]") else self.address
        name = name.strip("[]")
        if name == "localhost":
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    @property
    def schemes(self) -> tuple[str, ...]:
        """The URL schemes to try, in order of preference."""
        # With certificates to trust, one that is not must not lead to plain HTTP.
        plain = self.insecure or (self.is_local and not self.ca)
        return ("https", "http") if plain else ("https",)

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS settings. Raises :class:`UsageError` if ``ca`` cannot be read."""
        context = ssl.create_default_context()
        if self.ca:
            try:
                context.load_verify_locations(self.ca)
            except (OSError, ssl.SSLError) as error:
                raise UsageError(
                    f"cannot read the certificates in {self.ca}: {error}",
                    hint=f'it is set as ca in [registries."{self.host}"] of config.toml',
                ) from error
        elif self.insecure or self.is_local:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class RegistryTransport:
    """The connections to one registry; use it as an async context manager."""

    def __init__(
        self,
        endpoint: RegistryEndpoint,
        *,
        lookup: CredentialLookup = find_docker_credentials,
        connections: int = 8,
        read_timeout: float = READ_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self.host = endpoint.host
        #: Seconds without a byte after which a connection counts as lost, in either direction.
        self.read_timeout = read_timeout
        self._lookup = lookup
        self._connections = connections
        self._clock = clock
        self._base: URL | None = None
        self._lock = anyio.Lock()

    async def __aenter__(self) -> RegistryTransport:
        tls = self.endpoint.tls_context()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=self._connections),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_TIMEOUT, sock_read=self.read_timeout
            ),
            # Digests are computed over the bytes as sent, so nothing may decompress them.
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "danlu"},
            # A proxy cannot reach a registry on this machine.
            trust_env=not self.endpoint.is_local,
            # Requests must not carry anything from one repository to another.
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._auth = Authorizer(self._session, self.host, self._lookup, clock=self._clock)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def base_url(self) -> URL:
        """Return the registry's base URL, which the first call detects. Raises if none responds."""
        async with self._lock:
            if self._base is None:
                self._base = await self._probe_schemes()
                self._auth.allow_plain_http = self._base.scheme == "http"
            return self._base

    async def _probe_schemes(self) -> URL:
        schemes = self.endpoint.schemes
        for number, scheme in enumerate(schemes):
            base = URL(f"{scheme}://{self.endpoint.address}")
            try:
                with translate_client_errors(self.host):
                    async with self._session.get(base / "v2" / "") as response:
                        await self._check_version_response(response)
                        return base
            except (OutsideError, TemporaryError):
                if number + 1 == len(schemes):
                    raise
        raise AssertionError("a registry has a scheme")

    async def _check_version_response(self, response: aiohttp.ClientResponse) -> None:
        if response.status == 401:
            self._auth.accept_challenge(response.headers.getall("WWW-Authenticate", []))
        elif response.status >= 500 or response.status == 429:
            raise await response_error(response, host=self.host, what="its version")

    def is_same_origin(self, url: URL) -> bool:
        """Return whether credentials may be sent to ``url``."""
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
        body: RequestBody | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request to a path below ``/v2/`` or a URL from the registry; yield the response.

        ``what`` describes the requested object in errors. A status not in ``ok`` raises; a 401 is
        retried once with authorization.
        """
        base = await self.base_url()
        url = base.joinpath("v2", target, encoded=True) if isinstance(target, str) else target
        with translate_client_errors(self.host):
            # A 401 is either the first challenge or means that the token has expired.
            for last in (False, True):
                async with self._send_request(method, url, scope, headers, body) as response:
                    if (
                        response.status == 401
                        and not last
                        and self._should_reauthorize(response, scope)
                    ):
                        continue
                    if response.status not in ok:
                        error = await response_error(response, host=self.host, what=what)
                        is_expired = is_expired_login(error, method)
                        if is_expired and not last and self._discard_login(response, scope):
                            continue
                        if response.status in (401, 403):
                            error = self._auth.explain_denial(error)
                        raise error
                    yield response
                    return

    def _should_reauthorize(self, response: aiohttp.ClientResponse, scope: str) -> bool:
        if not self.is_same_origin(response.url):
            # A host that we were redirected to must not decide where our password is sent.
            return False
        self._discard_login(response, scope)
        return self._auth.accept_challenge(response.headers.getall("WWW-Authenticate", []))

    def _discard_login(self, response: aiohttp.ClientResponse, scope: str) -> bool:
        """Discard what the request was authorized with; return whether it was."""
        authorization = response.request_info.headers.get("Authorization", "")
        self._auth.discard_authorization(scope, authorization)
        return bool(authorization)

    @asynccontextmanager
    async def _send_request(
        self,
        method: str,
        url: URL,
        scope: str,
        headers: Mapping[str, str] | None,
        body: RequestBody | None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        sent = dict(headers or {})
        if self.is_same_origin(url):
            authorization = await self._auth.authorization_header(scope)
            if authorization is not None:
                sent["Authorization"] = authorization
        data = body() if callable(body) else body
        # A body can be read only once, so it cannot follow a redirect.
        follow = method in ("GET", "HEAD")
        async with self._session.request(
            method, url, headers=sent, data=data, allow_redirects=follow
        ) as response:
            yield response
