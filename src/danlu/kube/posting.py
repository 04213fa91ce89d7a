"""Questions to a server of somebody else's that runs in the cluster: one POST, one answer."""

from __future__ import annotations

import ssl
from types import TracebackType

import aiohttp
from yarl import URL

from danlu.errors import OutsideError, TemporaryError, UsageError

__all__ = ["Poster", "read_url"]

_CONNECTIONS = 16


class Poster:
    """POSTs JSON to one URL; use as an async context manager.

    ``ca`` is PEM, empty for this machine's authorities. Redirects are not followed, and the proxies
    of this machine are not asked: the server is one of the cluster.

    Raises :class:`UsageError` for a URL or certificates that are none. Messages have neither what
    was asked nor what was answered, nor a password of the URL.
    """

    def __init__(self, url: str, *, seconds: float, ca: str = "", most: int = 1 << 20) -> None:
        self._url = read_url(url)
        self._seconds = seconds
        self._most = most
        self._tls = _tls(ca, self.name) if self._url.scheme == "https" else None

    @property
    def name(self) -> str:
        """The URL as it may be shown."""
        return str(self._url.with_user(None).with_query(None))

    async def __aenter__(self) -> Poster:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
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
        """What is answered to ``body``.

        Raises :class:`TemporaryError` where no answer came in time or the server failed, and
        :class:`OutsideError` where it refused or said too much.
        """
        try:
            return await self._answer(body)
        except TimeoutError as error:
            raise TemporaryError(f"{self.name} did not answer in {self._seconds:g} s") from error
        except aiohttp.ClientError as error:
            raise TemporaryError(f"{self.name} cannot be asked: {type(error).__name__}") from error

    async def _answer(self, body: bytes) -> bytes:
        tls = self._tls if self._tls is not None else True
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        async with self._session.post(
            self._url, data=body, headers=headers, ssl=tls, allow_redirects=False
        ) as answer:
            if answer.status >= 500 or answer.status == 429:
                raise TemporaryError(f"{self.name} answered {answer.status}")
            if not 200 <= answer.status < 300:
                raise OutsideError(f"{self.name} answered {answer.status}")
            found = bytearray()
            async for piece in answer.content.iter_chunked(1 << 16):
                found += piece
                if len(found) > self._most:
                    raise OutsideError(f"{self.name} answered more than {self._most} bytes")
            return bytes(found)


def read_url(text: str) -> URL:
    """The address of a server to ask; raises :class:`UsageError` for what is none."""
    try:
        url = URL(text)
    except ValueError as error:
        raise UsageError(f"no URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError("the URL of a server to ask begins with http:// or https:// and its host")
    return url


def _tls(ca: str, name: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=ca or None)
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(
            f"the authority for {name} cannot be used: {error}", hint="it is PEM"
        ) from error
