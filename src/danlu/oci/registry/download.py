"""A blob on its way to us, over as many connections as it takes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import aiohttp
import anyio

from danlu.errors import ChecksumError, OutsideError, TemporaryError
from danlu.oci.registry.transport import Transport
from danlu.oci.types import Descriptor

__all__ = ["Download"]

_PIECE = 1 << 20
#: An attempt that brought this much was no failure, even if it broke off.
_WORTH = 1 << 16
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Download:
    """The state of one blob's transfer: how far it came and the digest so far."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        descriptor: Descriptor,
        write: Callable[[bytes], object],
        progress: Callable[[int], None],
    ) -> None:
        self._transport = transport
        self._path = path
        self._descriptor = descriptor
        self._write = write
        self._progress = progress
        self._hash = hashlib.sha256()
        self._offset = 0

    async def go_on(self, scope: str) -> bool:
        """One attempt; whether all is there. Raises :class:`TemporaryError` for next to nothing."""
        began = self._offset
        try:
            await self._attempt(scope)
        except TemporaryError:
            if self._offset - began < _WORTH:
                raise
        return self._offset == self._descriptor.size

    def verify(self) -> None:
        """Raise :class:`ChecksumError` where the bytes are not the blob's."""
        digest = "sha256:" + self._hash.hexdigest()
        if digest != self._descriptor.digest:
            raise ChecksumError(
                f"{self._transport.host} sent other bytes than {self._descriptor.digest}: {digest}",
                hint="the registry, or something between, is broken or hostile",
            )

    async def _attempt(self, scope: str) -> None:
        headers = {"Range": f"bytes={self._offset}-"} if self._offset else {}
        async with self._transport.request(
            "GET",
            f"{self._path}/blobs/{self._descriptor.digest}",
            scope=scope,
            what=f"blob {self._descriptor.digest} in {self._path}",
            headers=headers,
            ok=(200, 206),
        ) as response:
            await self._read(response, self._skipped(response))
        if self._offset < self._descriptor.size:
            raise TemporaryError(f"{self._transport.host} ended a transfer early")

    def _skipped(self, response: aiohttp.ClientResponse) -> int:
        """Bytes at the beginning of the answer that we have already."""
        if response.status == 200:
            return self._offset
        match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if match is None or int(match[1]) > self._offset:
            raise OutsideError(f"{self._transport.host} sent another part than it was asked for")
        return self._offset - int(match[1])

    async def _read(self, response: aiohttp.ClientResponse, skip: int) -> None:
        gathered: list[bytes] = []
        size = 0
        try:
            async for chunk in response.content.iter_any():
                if skip >= len(chunk):
                    skip -= len(chunk)
                    continue
                fresh = chunk[skip:] if skip else chunk
                skip = 0
                if self._offset + size + len(fresh) > self._descriptor.size:
                    raise ChecksumError(
                        f"{self._transport.host} sent more than the {self._descriptor.size} bytes "
                        f"of {self._descriptor.digest}"
                    )
                gathered.append(fresh)
                size += len(fresh)
                if size >= _PIECE:
                    await self._take(gathered)
                    size = 0
        finally:
            # What came before the connection broke need not come again.
            with anyio.CancelScope(shield=True):
                await self._take(gathered)

    async def _take(self, gathered: list[bytes]) -> None:
        if not gathered:
            return
        data = b"".join(gathered)
        gathered.clear()
        await anyio.to_thread.run_sync(self._keep, data)
        self._offset += len(data)
        self._progress(len(data))

    def _keep(self, data: bytes) -> None:
        self._hash.update(data)
        self._write(data)
