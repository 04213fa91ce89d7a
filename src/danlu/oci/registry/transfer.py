"""Resumable transfers of one blob: download and upload (OCI distribution spec, "Pushing blobs").

An upload is one PATCH, continued at the offset that the registry reports after a broken connection.
Nothing about it is kept for a later run; docs/architecture/registry.md says why.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import aiohttp
import anyio
from yarl import URL

from danlu.errors import ChecksumError, OutsideError, TemporaryError
from danlu.oci.digest import Digest
from danlu.oci.registry.errors import RegistryNotFound, response_error
from danlu.oci.registry.transport import RegistryTransport
from danlu.oci.types import Descriptor
from danlu.util.transfer_rate import MIN_TRANSFER, require_progress

_WRITE_CHUNK_SIZE = 1 << 20
_READ_CHUNK_SIZE = 1 << 18
#: Blobs up to this size are sent in a single PUT; larger ones in a PATCH that can be resumed.
_MAX_SINGLE_REQUEST = 1 << 20
#: Size of the parts for a registry that refuses a whole blob in one request.
_UPLOAD_PART_SIZE = 16 << 20
_MAX_UPLOAD_PART_SIZE = 1 << 30
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_UPLOAD_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,18})")
_DECIMAL = re.compile(r"[0-9]{1,18}")

#: Retries a coroutine function while it raises :class:`TemporaryError`.
Retry = Callable[[Callable[[], Awaitable[bool]]], Awaitable[bool]]

#: Returns the content up to an end, for one request.
RequestContent = Callable[[int], AsyncIterator[bytes]]


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
        self._furthest = 0

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
        try:
            await self._attempt()
        except TemporaryError:
            # Compared with the furthest offset ever reached: a registry that forgets an upload
            # again and again must not keep it going forever.
            if self._offset - self._furthest < MIN_TRANSFER:
                raise
            self._furthest = self._offset
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

    async def hash_beginning(self, file: BinaryIO) -> None:
        """Continue after the bytes in ``file``, which an earlier download left."""
        while data := await anyio.to_thread.run_sync(file.read, _WRITE_CHUNK_SIZE):
            await anyio.to_thread.run_sync(self._hash.update, data)
            self._offset += len(data)
            self._progress(len(data))
        self._furthest = self._offset

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
        with require_progress(self._transport.host, self._transport.read_timeout) as count:
            async with self._transport.request(
                "GET",
                f"{self._path}/blobs/{self._descriptor.digest}",
                scope=self._scope,
                what=f"blob {self._descriptor.digest} in {self._path}",
                headers=headers,
                ok=(200, 206),
            ) as response:
                await self._receive_body(response, self._count_overlap(response), count)
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

    async def _receive_body(
        self, response: aiohttp.ClientResponse, skip: int, count: Callable[[int], None]
    ) -> None:
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in response.content.iter_any():
                count(len(chunk))
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
        self._interrupted = False
        self._reported = 0
        #: The bytes of one request; the first request tries to send everything.
        self._part_size = self._size
        self._min_part_size = _UPLOAD_PART_SIZE
        self._stall = anyio.CancelScope()

    async def _attempt(self) -> None:
        try:
            if not self._interrupted:
                await self._start_upload()
            elif await self._find_offset():
                return
            self._interrupted = True
            with self._open_body() as body:
                if self._size > _MAX_SINGLE_REQUEST:
                    await self._send_parts(body)
                    await self._complete_upload(None)
                else:
                    await self._complete_upload(partial(body, self._size))
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
            # Required for an upload in chunks (distribution-spec, "Pushing a blob in chunks").
            headers={"Content-Length": "0"},
            ok=(202,),
        ) as response:
            self._update_location(response)
            minimum = response.headers.get("OCI-Chunk-Min-Length", "")
            if _DECIMAL.fullmatch(minimum):
                # Limited, because a part that was interrupted is sent again as a whole.
                self._min_part_size = max(
                    _UPLOAD_PART_SIZE, min(int(minimum), _MAX_UPLOAD_PART_SIZE)
                )

    async def _find_offset(self) -> bool:
        """Continue after an interruption; return whether the blob had arrived completely."""
        if self._location and self._size > _MAX_SINGLE_REQUEST and await self._query_offset():
            return False
        # The connection may have broken after the last byte, before we received the response.
        if await self._is_in_repository():
            self._report_progress(self._size)
            return True
        # A proxy may limit the time or size of a request: the next ones are smaller.
        self._part_size = self._min_part_size
        await self._start_upload()
        return False

    async def _is_in_repository(self) -> bool:
        async with self._transport.request(
            "HEAD",
            f"{self._path}/blobs/{self._digest}",
            scope=self._scope,
            what=self._description,
            ok=(200, 404),
        ) as response:
            return response.status == 200

    async def _query_offset(self) -> bool:
        """Ask how much of an interrupted upload has arrived; return whether it can continue."""
        assert self._location is not None
        async with self._transport.request(
            "GET",
            self._location,
            scope=self._scope,
            what=self._description,
            ok=(204, 200, 202, 400, 404, 405, 416),
        ) as response:
            match = _UPLOAD_RANGE.fullmatch(response.headers.get("Range", ""))
            if response.status not in (200, 202, 204) or match is None:
                return False
            last = int(match[1])
            # `0-0` means nothing yet, but could also mean one byte, and sending that byte
            # again may be refused. Starting over is certain to work.
            if not 0 < last < self._size:
                return False
            self._offset = last + 1
            self._update_location(response)
            return True

    async def _send_parts(self, body: RequestContent) -> None:
        while self._offset < self._size:
            assert self._location is not None
            end = min(self._size, self._offset + self._part_size)
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(end - self._offset),
                "Content-Range": f"{self._offset}-{end - 1}",
            }
            async with self._send_body(
                "PATCH", self._location, headers, partial(body, end), ok=(202, 204, 413, 416)
            ) as response:
                if response.status == 416:
                    raise TemporaryError(f"{self._transport.host} lost a part of an upload")
                if response.status == 413 and self._part_size > self._min_part_size:
                    self._part_size = self._min_part_size
                    end = self._offset
                elif response.status == 413:
                    raise await response_error(
                        response, host=self._transport.host, what=self._description
                    )
                else:
                    self._update_location(response)
            self._offset = end

    async def _complete_upload(self, body: Callable[[], AsyncIterator[bytes]] | None) -> None:
        assert self._location is not None
        # The location may have a query with escapes that must stay as the registry wrote them.
        location = str(self._location)
        with_digest = f"{location}{'&' if '?' in location else '?'}digest={self._digest}"
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(self._size if body else 0),
        }
        async with self._send_body(
            "PUT", URL(with_digest, encoded=True), headers, body, ok=(201, 204)
        ):
            pass

    @asynccontextmanager
    async def _send_body(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: Callable[[], AsyncIterator[bytes]] | None,
        *,
        ok: tuple[int, ...],
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; raise :class:`TemporaryError` if the registry stops taking its body."""
        # If the network disappears while data is sent, TCP reports that only after all its
        # retransmissions: 13 to 30 minutes (tcp(7), tcp_retries2).
        with anyio.CancelScope() as self._stall:
            async with self._transport.request(
                method,
                url,
                scope=self._scope,
                what=self._description,
                headers=headers,
                body=body,
                ok=ok,
            ) as response:
                # The body was taken; the response has the read timeout of every request.
                self._stall.deadline = math.inf
                yield response
        if self._stall.cancelled_caught:
            raise TemporaryError(
                f"{self._transport.host} took no data for {self._transport.read_timeout:g} seconds"
            )

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
    def _open_body(self) -> Iterator[RequestContent]:
        """Yield a function that returns the content from the offset to an end, for each request.

        The file is closed here, because aiohttp ends a request when the response arrives, whether
        or not the body was read to its end.
        """
        content = self._content
        with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
            yield partial(self._read_chunks, file)

    async def _read_chunks(self, file: BinaryIO, end: int) -> AsyncIterator[bytes]:
        position = file.seek(self._offset)
        while size := min(_READ_CHUNK_SIZE, end - position):
            chunk = await anyio.to_thread.run_sync(file.read, size)
            if not chunk:
                return
            # The limit is for the registry to take this chunk, not for our disk.
            self._stall.deadline = anyio.current_time() + self._transport.read_timeout
            yield chunk
            self._stall.deadline = math.inf
            position += len(chunk)
            self._report_progress(position)

    def _report_progress(self, position: int) -> None:
        """Report bytes up to ``position`` once, even if they are sent a second time."""
        if position > self._reported:
            self._progress(position - self._reported)
            self._reported = position
