"""Resumable transfers of one blob: download and upload (OCI distribution spec, "Pushing blobs")."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import aiohttp
import anyio
from yarl import URL

from danlu.errors import ChecksumError, OutsideError, TemporaryError
from danlu.oci.digest import Digest
from danlu.oci.registry.errors import RegistryNotFound
from danlu.oci.registry.transport import RegistryTransport
from danlu.oci.types import Descriptor

_WRITE_CHUNK_SIZE = 1 << 20
_READ_CHUNK_SIZE = 1 << 18
#: Blobs up to this size are sent in a single PUT; larger ones in a PATCH that can be resumed.
_MAX_SINGLE_REQUEST = 1 << 20
#: An attempt that transferred this much does not count as a failure, even if it broke off.
_MIN_PROGRESS = 1 << 16
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_UPLOAD_RANGE = re.compile(r"(?:bytes=)?0-(\d+)")

#: Retries a coroutine function while it raises :class:`TemporaryError`.
Retry = Callable[[Callable[[], Awaitable[bool]]], Awaitable[bool]]


class _BlobTransfer:
    """A transfer that continues at ``_offset`` after each broken connection."""

    def __init__(
        self,
        transport: RegistryTransport,
        path: str,
        *,
        scope: str,
        progress: Callable[[int], None],
    ) -> None:
        self._transport = transport
        self._path = path
        self._scope = scope
        self._progress = progress
        self._offset = 0

    async def run(self, retry: Retry) -> None:
        """Transfer the whole blob; ``progress`` is called with each number of further bytes.

        ``retry`` limits the attempts in a row that make no progress, not those of the transfer: a
        large blob may need many connections.
        """
        while not await retry(self.resume):
            pass

    async def resume(self) -> bool:
        """Make one attempt and return whether the blob is complete.

        Raises :class:`TemporaryError` if the attempt failed with next to no progress.
        """
        before = self._offset
        try:
            await self._attempt()
        except TemporaryError:
            if self._offset - before < _MIN_PROGRESS:
                raise
            return False
        return True

    async def _attempt(self) -> None:
        raise NotImplementedError


class BlobDownload(_BlobTransfer):
    """Download a blob and compute its digest on the way."""

    def __init__(
        self,
        transport: RegistryTransport,
        path: str,
        descriptor: Descriptor,
        write: Callable[[bytes], object],
        *,
        scope: str,
        progress: Callable[[int], None],
    ) -> None:
        super().__init__(transport, path, scope=scope, progress=progress)
        self._descriptor = descriptor
        self._write = write
        self._hash = hashlib.sha256()

    def verify(self) -> None:
        """Raise :class:`ChecksumError` if the downloaded bytes don't have the blob's digest."""
        digest = "sha256:" + self._hash.hexdigest()
        if digest != self._descriptor.digest:
            raise ChecksumError(
                f"{self._transport.host} sent {digest} instead of {self._descriptor.digest}",
                hint="the registry, or a proxy in between, is broken or malicious",
            )

    async def _attempt(self) -> None:
        if self._offset and self._offset == self._descriptor.size:
            # The last connection broke after the last byte; a Range beyond it would be an error.
            return
        headers = {"Range": f"bytes={self._offset}-"} if self._offset else {}
        async with self._transport.request(
            "GET",
            f"{self._path}/blobs/{self._descriptor.digest}",
            scope=self._scope,
            what=f"blob {self._descriptor.digest} in {self._path}",
            headers=headers,
            ok=(200, 206),
        ) as response:
            await self._receive_body(response, self._count_overlap(response))
        if self._offset < self._descriptor.size:
            raise TemporaryError(f"{self._transport.host} ended a transfer early")

    def _count_overlap(self, response: aiohttp.ClientResponse) -> int:
        """Return how many bytes at the start of the response we already have."""
        if response.status == 200:
            # The registry ignored the Range header and sends the blob from its start.
            return self._offset
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if match is None or int(match[1]) > self._offset:
            raise OutsideError(f"{self._transport.host} sent a different range than requested")
        return self._offset - int(match[1])

    async def _receive_body(self, response: aiohttp.ClientResponse, skip: int) -> None:
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in response.content.iter_any():
                if skip >= len(chunk):
                    skip -= len(chunk)
                    continue
                fresh = chunk[skip:] if skip else chunk
                skip = 0
                # A registry must not fill the disk by sending more than the manifest says.
                if self._offset + size + len(fresh) > self._descriptor.size:
                    raise ChecksumError(
                        f"{self._transport.host} sent more than the {self._descriptor.size} bytes "
                        f"of {self._descriptor.digest}"
                    )
                chunks.append(fresh)
                size += len(fresh)
                if size >= _WRITE_CHUNK_SIZE:
                    await self._flush_chunks(chunks)
                    size = 0
        finally:
            # Keep what arrived before the connection broke, so that it is not sent again.
            with anyio.CancelScope(shield=True):
                await self._flush_chunks(chunks)

    async def _flush_chunks(self, chunks: list[bytes]) -> None:
        if not chunks:
            return
        data = b"".join(chunks)
        chunks.clear()
        await anyio.to_thread.run_sync(self._write_and_hash, data)
        self._offset += len(data)
        self._progress(len(data))

    def _write_and_hash(self, data: bytes) -> None:
        self._hash.update(data)
        self._write(data)


class BlobUpload(_BlobTransfer):
    """Upload a blob to the location that the registry assigns."""

    def __init__(
        self,
        transport: RegistryTransport,
        path: str,
        digest: Digest,
        content: Path | bytes,
        *,
        scope: str,
        progress: Callable[[int], None],
    ) -> None:
        super().__init__(transport, path, scope=scope, progress=progress)
        self._digest = digest
        self._content = content
        self._size = len(content) if isinstance(content, bytes) else content.stat().st_size
        self._description = f"upload to {path}"
        self._location: URL | None = None
        self._reported = 0

    async def _attempt(self) -> None:
        try:
            if self._location is None:
                await self._start_upload()
            else:
                await self._query_offset()
            with self._open_body() as body:
                if self._size > _MAX_SINGLE_REQUEST:
                    await self._send_content(body)
                    await self._complete_upload(None)
                else:
                    await self._complete_upload(body)
        except RegistryNotFound:
            # The registry forgot the upload, or does not support resuming: start from scratch.
            # The offset goes back too, so that this attempt counts as one without progress.
            if self._location is None:
                raise
            self._location = None
            self._offset = 0
            raise TemporaryError(f"{self._transport.host} lost an upload") from None

    async def _start_upload(self) -> None:
        self._offset = 0
        async with self._transport.request(
            "POST",
            f"{self._path}/blobs/uploads/",
            scope=self._scope,
            what=self._description,
            headers={"Content-Length": "0"},
            ok=(202,),
        ) as response:
            self._update_location(response)

    async def _query_offset(self) -> None:
        """Ask how much of an interrupted upload has arrived; start again if that is unknown."""
        assert self._location is not None
        if self._size <= _MAX_SINGLE_REQUEST:
            await self._start_upload()
            return
        async with self._transport.request(
            "GET",
            self._location,
            scope=self._scope,
            what=self._description,
            ok=(204, 200, 202, 400, 404, 405, 416),
        ) as response:
            match = _UPLOAD_RANGE.fullmatch(response.headers.get("Range", ""))
            usable = response.status in (200, 202, 204) and match is not None
            if usable and match is not None and int(match[1]) < self._size:
                # `0-0` means nothing yet, but could also mean one byte, and sending that byte
                # again may be refused. Starting over is certain to work.
                self._offset = int(match[1]) + 1 if int(match[1]) else 0
                self._update_location(response)
        if not usable or not self._offset:
            await self._start_upload()

    async def _send_content(self, body: Callable[[], AsyncIterator[bytes]]) -> None:
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
            what=self._description,
            headers=headers,
            body=body,
            ok=(202, 204),
        ) as response:
            self._update_location(response)
        self._offset = self._size

    async def _complete_upload(self, body: Callable[[], AsyncIterator[bytes]] | None) -> None:
        assert self._location is not None
        # The location may have a query with escapes that must stay as the registry wrote them.
        location = str(self._location)
        with_digest = f"{location}{'&' if '?' in location else '?'}digest={self._digest}"
        async with self._transport.request(
            "PUT",
            URL(with_digest, encoded=True),
            scope=self._scope,
            what=self._description,
            headers={
                "Content-Type": "application/octet-stream",
                "Content-Length": str(self._size if body else 0),
            },
            body=body,
            ok=(201, 204),
        ):
            pass

    def _update_location(self, response: aiohttp.ClientResponse) -> None:
        text = response.headers.get("Location", "")
        if not text:
            if self._location is None:
                raise OutsideError(f"{self._transport.host} sent no location to upload to")
            return
        location = response.url.join(URL(text, encoded=True))
        if location.host == response.url.host and response.url.scheme == "https":
            # A registry behind a TLS proxy may not know that clients reach it by https.
            location = location.with_scheme("https") if location.port in (80, 443) else location
        self._location = location

    @contextmanager
    def _open_body(self) -> Iterator[Callable[[], AsyncIterator[bytes]]]:
        """Yield a function that returns the rest of the content, again for each request.

        The file is closed here, because aiohttp ends a request when the response arrives, whether
        or not the body was read to its end.
        """
        content = self._content
        with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
            yield lambda: self._read_chunks(file)

    async def _read_chunks(self, file: BinaryIO) -> AsyncIterator[bytes]:
        position = file.seek(self._offset)
        while chunk := await anyio.to_thread.run_sync(file.read, _READ_CHUNK_SIZE):
            yield chunk
            position += len(chunk)
            self._report_progress(position)

    def _report_progress(self, position: int) -> None:
        """Report bytes up to ``position`` once, even if they are sent a second time."""
        if position > self._reported:
            self._progress(position - self._reported)
            self._reported = position
