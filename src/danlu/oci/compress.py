"""Compress and decompress streams reproducibly, on any number of cores.

``zstd`` and ``gzip`` input is cut into blocks of a fixed size that threads compress in parallel, so
the number of threads does not change the output. The version of the compression library may, which
is why the identity of an image is its config digest and never a compressed blob's.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, Protocol

from danlu.oci.tar.read import LayerError, Readable

Compression = Literal["none", "gzip", "zstd"]

_BLOCK_SIZE = 1 << 20
# How far DEFLATE refers back (RFC 1951, 2).
_WINDOW_SIZE = 1 << 15
_GZIP_LEVEL = 4
_ZSTD_LEVEL = 3
#: RFC 1952: no name, no time, an unknown operating system.
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"

# A stream is a decompression bomb if it expands more than this, once it exceeds the floor.
_BOMB_FLOOR = 2 << 30
_BOMB_RATIO = 300


class Compressor(Protocol):
    """A stream that is written in chunks and must be finished."""

    def write(self, data: bytes, /) -> object:
        """Compress and forward a chunk."""
        ...

    def finish(self) -> None:
        """Forward what is left and end the stream."""
        ...


def open_compressor(
    kind: Compression, write: Callable[[bytes], object], *, threads: int | None = None
) -> Compressor:
    """Return a compressor that passes its output to ``write``, always in the caller's thread."""
    workers = threads or len(os.sched_getaffinity(0))
    if kind == "zstd":
        return _ZstdCompressor(write, workers)
    if kind == "gzip":
        return _GzipCompressor(write, workers)
    return _PassThroughCompressor(write)


class _PassThroughCompressor:
    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.write = write

    def finish(self) -> None:
        pass


class _BlockCompressor:
    """Regroup chunks of any size into blocks of one size."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def write(self, data: bytes, /) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size >= _BLOCK_SIZE:
            whole = b"".join(self._pieces)
            for at in range(0, len(whole) - _BLOCK_SIZE + 1, _BLOCK_SIZE):
                self._compress_block(whole[at : at + _BLOCK_SIZE])
            self._pieces = [whole[len(whole) - len(whole) % _BLOCK_SIZE :]]
            self._size = len(self._pieces[0])

    def _remaining_data(self) -> bytes:
        return b"".join(self._pieces)

    def _compress_block(self, data: bytes) -> None:
        raise NotImplementedError


class _ZstdCompressor(_BlockCompressor):
    def __init__(self, write: Callable[[bytes], object], threads: int) -> None:
        import zstandard  # slow to import, and commands without images don't need it

        super().__init__()
        self._sink = write
        # The output is the same for any number of workers, but differs without workers.
        self._zstd = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, threads=threads).compressobj()

    def _compress_block(self, data: bytes) -> None:
        compressed = self._zstd.compress(data)
        if compressed:
            self._sink(compressed)

    def finish(self) -> None:
        self._compress_block(self._remaining_data())
        self._sink(self._zstd.flush())


class _GzipCompressor(_BlockCompressor):
    """Compress blocks in parallel; each ends on a byte boundary and knows the 32 KiB before it."""

    def __init__(self, write: Callable[[bytes], object], threads: int) -> None:
        super().__init__()
        self._sink = write
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._queue: deque[Future[bytes]] = deque()
        self._window = b""
        self._crc32 = 0
        self._total = 0
        write(_GZIP_HEADER)

    def _compress_block(self, data: bytes) -> None:
        self._update_trailer(data)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "gzip")
        self._queue.append(self._pool.submit(_deflate_block, data, self._window, last=False))
        self._window = data[-_WINDOW_SIZE:]
        while len(self._queue) > 2 * self._threads:
            self._sink(self._queue.popleft().result())

    def _update_trailer(self, data: bytes) -> None:
        self._crc32 = zlib.crc32(data, self._crc32)
        self._total += len(data)

    def finish(self) -> None:
        rest = self._remaining_data()
        self._update_trailer(rest)
        for block in self._queue:
            self._sink(block.result())
        self._queue.clear()
        if self._pool is not None:
            self._pool.shutdown()
        self._sink(_deflate_block(rest, self._window, last=True))
        self._sink(
            self._crc32.to_bytes(4, "little") + (self._total % (1 << 32)).to_bytes(4, "little")
        )


def _deflate_block(data: bytes, window: bytes, *, last: bool) -> bytes:
    arguments = (_GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_DEFAULT_STRATEGY)
    maker = zlib.compressobj(*arguments, window) if window else zlib.compressobj(*arguments)
    # A sync flush ends at a byte boundary (RFC 1951, 3.2.4), so blocks that were compressed in
    # parallel can be joined. The window lets each refer to the data before it.
    return maker.compress(data) + maker.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


def detect_compression(start: bytes) -> Compression:
    """Return how a stream is compressed, from its first four bytes."""
    if start.startswith(b"\x1f\x8b"):
        return "gzip"
    return "zstd" if _is_zstd(start) else "none"


def _is_zstd(start: bytes) -> bool:
    # RFC 8878: a frame, or a skippable frame, which may come first.
    return start.startswith(b"\x28\xb5\x2f\xfd") or (
        start[1:4] == b"\x2a\x4d\x18" and start[:1] >= b"\x50" and start[:1] <= b"\x5f"
    )


def open_decompressor(kind: Compression, stream: Readable) -> Readable:
    """Return the decompressed content of ``stream``, which may have several frames or members.

    Reading raises :class:`LayerError` if the stream is damaged or a decompression bomb.
    """
    if kind == "none":
        return stream
    counted = _CountingReader(stream)
    return _BombGuard(_ZstdReader(counted) if kind == "zstd" else _GzipReader(counted), counted)


class _CountingReader:
    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.size = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self.size += len(data)
        return data


class _BombGuard:
    def __init__(self, stream: Readable, source: _CountingReader) -> None:
        self._stream = stream
        self._source = source
        self._size = 0

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._size += len(data)
        if self._size > _BOMB_FLOOR and self._size > _BOMB_RATIO * self._source.size:
            raise LayerError(
                f"the layer is a decompression bomb: {self._source.size} bytes expand to at least "
                f"{self._size}"
            )
        return data


class _ZstdReader:
    def __init__(self, stream: Readable) -> None:
        import zstandard  # slow to import, and commands without images don't need it

        self._error = zstandard.ZstdError
        self._zstd = zstandard.ZstdDecompressor().stream_reader(
            stream,  # type: ignore[arg-type]  # it only reads
            read_size=_BLOCK_SIZE,
            read_across_frames=True,
        )

    def read(self, size: int, /) -> bytes:
        try:
            return self._zstd.read(size)
        except self._error as error:
            raise LayerError(f"the layer is damaged: {error}") from error


class _GzipReader:
    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._pending = b""
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._inside_member = False

    def read(self, size: int, /) -> bytes:
        while True:
            if not self._pending:
                self._pending = self._stream.read(_BLOCK_SIZE)
                if not self._pending:
                    if self._inside_member:
                        raise LayerError("the compressed layer is truncated")
                    return b""
            data = self._decompress_pending(size)
            if data:
                return data

    def _decompress_pending(self, size: int) -> bytes:
        if not self._inside_member:
            # RFC 1952 does not allow zeros after a member, but some tools pad with them.
            self._pending = self._pending.lstrip(b"\0")
            if not self._pending:
                return b""
        try:
            data = self._member.decompress(self._pending, size)
        except zlib.error as error:
            raise LayerError(f"the layer is damaged: {error}") from error
        self._inside_member = True
        self._pending = self._member.unconsumed_tail
        if self._member.eof:
            self._pending = self._member.unused_data
            self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
            self._inside_member = False
        return data
