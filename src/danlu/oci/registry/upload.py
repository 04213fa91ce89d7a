"""A blob on its way to a registry (distribution spec, "Pushing blobs")."""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import aiohttp
import anyio
from yarl import URL

from danlu.errors import OutsideError, TemporaryError
from danlu.oci.digest import Digest
from danlu.oci.registry.failures import NotFound
from danlu.oci.registry.transport import Transport

__all__ = ["Upload"]

_PIECE = 1 << 18
#: Blobs up to this size go in one request after the first; bigger ones can be continued.
_SMALL = 1 << 20
#: An attempt that brought this much was no failure, even if it broke off.
_WORTH = 1 << 16
_RANGE = re.compile(r"(?:bytes=)?0-(\d+)")


class Upload:
    """The state of one blob's transfer: the registry's place for it, and how far it came."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        digest: Digest,
        content: Path | bytes,
        *,
        scope: str,
        progress: Callable[[int], None],
    ) -> None:
        self._transport = transport
        self._path = path
        self._digest = digest
        self._content = content
        self._size = len(content) if isinstance(content, bytes) else content.stat().st_size
        self._scope = scope
        self._progress = progress
        self._what = f"upload to {path}"
        self._location: URL | None = None
        self._offset = 0
        self._reported = 0

    async def go_on(self) -> bool:
        """One attempt; whether that was all. :class:`TemporaryError` where it brought nothing."""
        before = self._offset
        try:
            if self._location is None:
                await self._begin()
            else:
                await self._ask_how_far()
            with self._body() as body:
                if self._size > _SMALL:
                    await self._patch(body)
                    await self._finish(None)
                else:
                    await self._finish(body)
        except NotFound:
            # It has forgotten the upload, or cannot go on with one: from the beginning.
            if self._location is None:
                raise
            self._location = None
            raise TemporaryError(f"{self._transport.host} lost an upload") from None
        except TemporaryError:
            if self._offset - before < _WORTH:
                raise
            return False
        return True

    async def _begin(self) -> None:
        self._offset = 0
        async with self._transport.request(
            "POST",
            f"{self._path}/blobs/uploads/",
            scope=self._scope,
            what=self._what,
            headers={"Content-Length": "0"},
            ok=(202,),
        ) as response:
            self._take_location(response)

    async def _ask_how_far(self) -> None:
        """Where an interrupted upload stands, or begin anew where the registry cannot say."""
        assert self._location is not None
        if self._size <= _SMALL:
            await self._begin()
            return
        async with self._transport.request(
            "GET",
            self._location,
            scope=self._scope,
            what=self._what,
            ok=(204, 200, 202, 400, 404, 405, 416),
        ) as response:
            match = _RANGE.fullmatch(response.headers.get("Range", ""))
            usable = response.status in (200, 202, 204) and match is not None
            if usable and match is not None and int(match[1]) < self._size:
                # Nothing yet is said as 0-0, which could also be one byte; sending it again is
                # refused or harmless, so begin anew for certainty.
                self._offset = int(match[1]) + 1 if int(match[1]) else 0
                self._take_location(response)
        if not usable or not self._offset:
            await self._begin()

    async def _patch(self, body: Callable[[], AsyncIterator[bytes]]) -> None:
        assert self._location is not None
        if self._offset >= self._size:
            return
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(self._size - self._offset),
            "Content-Range": f"{self._offset}-{self._size - 1}",
        }
        async with self._transport.request(
            "PATCH",
            self._location,
            scope=self._scope,
            what=self._what,
            headers=headers,
            body=body,
            ok=(202, 204),
        ) as response:
            self._take_location(response)
        self._offset = self._size

    async def _finish(self, body: Callable[[], AsyncIterator[bytes]] | None) -> None:
        assert self._location is not None
        text = str(self._location)
        joined = f"{text}{'&' if '?' in text else '?'}digest={self._digest}"
        async with self._transport.request(
            "PUT",
            URL(joined, encoded=True),
            scope=self._scope,
            what=self._what,
            headers={
                "Content-Type": "application/octet-stream",
                "Content-Length": str(self._size if body else 0),
            },
            body=body,
            ok=(201, 204),
        ):
            pass

    def _take_location(self, response: aiohttp.ClientResponse) -> None:
        text = response.headers.get("Location", "")
        if not text:
            if self._location is None:
                raise OutsideError(f"{self._transport.host} names no place to upload to")
            return
        location = response.url.join(URL(text, encoded=True))
        if location.host == response.url.host and response.url.scheme == "https":
            # A registry behind a proxy that does not know that it is spoken to by TLS.
            location = location.with_scheme("https") if location.port in (80, 443) else location
        self._location = location

    @contextmanager
    def _body(self) -> Iterator[Callable[[], AsyncIterator[bytes]]]:
        """What makes the rest of the content anew for each request; the file stays ours to close.

        aiohttp ends a request with its answer, whether or not the body was read to its end.
        """
        content = self._content
        with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
            yield lambda: self._pieces(file)

    async def _pieces(self, file: BinaryIO) -> AsyncIterator[bytes]:
        at = file.seek(self._offset)
        while piece := await anyio.to_thread.run_sync(file.read, _PIECE):
            yield piece
            at += len(piece)
            self._report(at)

    def _report(self, at: int) -> None:
        """Bytes that are sent a second time are not counted again."""
        if at > self._reported:
            self._progress(at - self._reported)
            self._reported = at
