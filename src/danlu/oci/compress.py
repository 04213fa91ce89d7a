"""Compressed streams: the same bytes for the same content, on any number of cores.

``zstd`` and ``gzip`` are cut into blocks of a fixed size that threads compress side by side, so
that the number of threads does not show in the result. It may change with the version of the
compressing library, which is why nothing but an image's config is its identity.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, Protocol

from danlu.oci.tar.read import LayerError, Readable

__all__ = ["Compression", "Compressor", "compressor", "decompressed", "detect"]

Compression = Literal["none", "gzip", "zstd"]

_BLOCK = 1 << 20
_WINDOW = 1 << 15
_GZIP_LEVEL = 4
_ZSTD_LEVEL = 3
#: RFC 1952: no name, no time, an unknown operating system.
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"

# A bomb is much that comes out of little. Below the floor anything goes.
_BOMB_FLOOR = 2 << 30
_BOMB_RATIO = 300


class Compressor(Protocol):
    """Takes content in pieces and passes it on compressed; :meth:`finish` ends the stream."""

    def write(self, data: bytes, /) -> object:
        """Take a piece."""
        ...

    def finish(self) -> None:
        """Pass on what is left."""
        ...


def compressor(
    kind: Compression, write: Callable[[bytes], object], *, threads: int | None = None
) -> Compressor:
    """A compressor that passes what it makes to ``write``, always in the caller's thread."""
    workers = threads or len(os.sched_getaffinity(0))
    if kind == "zstd":
        return _Zstd(write, workers)
    if kind == "gzip":
        return _Gzip(write, workers)
    return _Plain(write)


class _Plain:
    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.write = write

    def finish(self) -> None:
        pass


class _Blocks:
    """Gathers pieces of any size to blocks of one size."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def write(self, data: bytes, /) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size >= _BLOCK:
            whole = b"".join(self._pieces)
            for at in range(0, len(whole) - _BLOCK + 1, _BLOCK):
                self._block(whole[at : at + _BLOCK])
            self._pieces = [whole[len(whole) - len(whole) % _BLOCK :]]
            self._size = len(self._pieces[0])

    def _rest(self) -> bytes:
        return b"".join(self._pieces)

    def _block(self, data: bytes) -> None:
        raise NotImplementedError


class _Zstd(_Blocks):
    def __init__(self, write: Callable[[bytes], object], threads: int) -> None:
        import zstandard

        super().__init__()
        self._sink = write
        # With workers, one or many, the result is the same; without any it is another.
        self._zstd = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, threads=threads).compressobj()

    def _block(self, data: bytes) -> None:
        made = self._zstd.compress(data)
        if made:
            self._sink(made)

    def finish(self) -> None:
        self._block(self._rest())
        self._sink(self._zstd.flush())


class _Gzip(_Blocks):
    """Blocks end on a byte's border (a sync flush) and know the 32 KiB before them."""

    def __init__(self, write: Callable[[bytes], object], threads: int) -> None:
        super().__init__()
        self._sink = write
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._queue: deque[Future[bytes]] = deque()
        self._window = b""
        self._sum = 0
        self._total = 0
        write(_GZIP_HEADER)

    def _block(self, data: bytes) -> None:
        self._count(data)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "gzip")
        self._queue.append(self._pool.submit(_deflate, data, self._window, last=False))
        self._window = data[-_WINDOW:]
        while len(self._queue) > 2 * self._threads:
            self._sink(self._queue.popleft().result())

    def _count(self, data: bytes) -> None:
        self._sum = zlib.crc32(data, self._sum)
        self._total += len(data)

    def finish(self) -> None:
        rest = self._rest()
        self._count(rest)
        for one in self._queue:
            self._sink(one.result())
        self._queue.clear()
        if self._pool is not None:
            self._pool.shutdown()
        self._sink(_deflate(rest, self._window, last=True))
        self._sink(
            self._sum.to_bytes(4, "little") + (self._total % (1 << 32)).to_bytes(4, "little")
        )


def _deflate(data: bytes, window: bytes, *, last: bool) -> bytes:
    arguments = (_GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_DEFAULT_STRATEGY)
    maker = zlib.compressobj(*arguments, window) if window else zlib.compressobj(*arguments)
    return maker.compress(data) + maker.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)


def detect(start: bytes) -> Compression:
    """How a stream that begins with ``start`` (four bytes are enough) is compressed."""
    if start.startswith(b"\x1f\x8b"):
        return "gzip"
    return "zstd" if _is_zstd(start) else "none"


def _is_zstd(start: bytes) -> bool:
    # RFC 8878: a frame, or a skippable frame, which may come first.
    return start.startswith(b"\x28\xb5\x2f\xfd") or (
        start[1:4] == b"\x2a\x4d\x18" and start[:1] >= b"\x50" and start[:1] <= b"\x5f"
    )


def decompressed(kind: Compression, stream: Readable) -> Readable:
    """The content of ``stream``, which may be many frames one after the other.

    Reading raises :class:`LayerError` where the stream is damaged or is a bomb.
    """
    if kind == "none":
        return stream
    counted = _Counted(stream)
    return _Guarded(_Unzstd(counted) if kind == "zstd" else _Gunzip(counted), counted)


class _Counted:
    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.size = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self.size += len(data)
        return data


class _Guarded:
    def __init__(self, stream: Readable, source: _Counted) -> None:
        self._stream = stream
        self._source = source
        self._size = 0

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._size += len(data)
        if self._size > _BOMB_FLOOR and self._size > _BOMB_RATIO * self._source.size:
            raise LayerError(
                f"the layer is a bomb: {self._source.size} bytes unpack to more than {self._size}"
            )
        return data


class _Unzstd:
    def __init__(self, stream: Readable) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._zstd = zstandard.ZstdDecompressor().stream_reader(
            stream,  # type: ignore[arg-type]  # it only reads
            read_size=_BLOCK,
            read_across_frames=True,
        )

    def read(self, size: int, /) -> bytes:
        try:
            return self._zstd.read(size)
        except self._error as error:
            raise LayerError(f"the layer is damaged: {error}") from error


class _Gunzip:
    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._waiting = b""
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._begun = False

    def read(self, size: int, /) -> bytes:
        while True:
            if not self._waiting:
                self._waiting = self._stream.read(_BLOCK)
                if not self._waiting:
                    if self._begun:
                        raise LayerError("the layer ends early", hint="it was cut off")
                    return b""
            data = self._more(size)
            if data:
                return data

    def _more(self, size: int) -> bytes:
        if not self._begun:
            # RFC 1952 knows nothing of zeros after a member, but tapes and tools add them.
            self._waiting = self._waiting.lstrip(b"\0")
            if not self._waiting:
                return b""
        try:
            data = self._member.decompress(self._waiting, size)
        except zlib.error as error:
            raise LayerError(f"the layer is damaged: {error}") from error
        self._begun = True
        self._waiting = self._member.unconsumed_tail
        if self._member.eof:
            self._waiting = self._member.unused_data
            self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
            self._begun = False
        return data
