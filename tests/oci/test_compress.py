from __future__ import annotations

import contextlib
import gzip
import io
import random

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.oci import compress
from danlu.oci.compress import Compression, detect_compression, open_compressor, open_decompressor
from danlu.oci.tar import LayerError

KINDS: list[Compression] = ["none", "gzip", "zstd"]
BIG = b"".join(b"%d\n" % (number * number) for number in range(400_000)) + random.Random(
    1
).randbytes(99_999)


def compress_data(
    kind: Compression, data: bytes, *, step: int = 1 << 20, threads: int = 2
) -> bytes:
    out = io.BytesIO()
    maker = open_compressor(kind, out.write, threads=threads)
    for at in range(0, len(data), step):
        maker.write(data[at : at + step])
    maker.finish()
    return out.getvalue()


def decompress_data(kind: Compression, data: bytes, step: int = 1 << 16) -> bytes:
    stream = open_decompressor(kind, io.BytesIO(data))
    return b"".join(iter(lambda: stream.read(step), b""))


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(data=st.one_of(st.binary(max_size=5000), st.just(BIG)))
def test_decompression_restores_the_input(kind: Compression, data: bytes) -> None:
    assert decompress_data(kind, compress_data(kind, data)) == data


@pytest.mark.parametrize("kind", KINDS)
def test_output_depends_on_neither_threads_nor_chunk_sizes(kind: Compression) -> None:
    results = {
        compress_data(kind, BIG, threads=threads, step=step)
        for threads, step in ((1, 1 << 20), (2, 777_777), (5, len(BIG)), (3, 12_345))
    }
    assert len(results) == 1


def test_gzip_and_zstd_programs_read_our_streams() -> None:
    assert gzip.decompress(compress_data("gzip", BIG)) == BIG
    reader = zstandard.ZstdDecompressor().stream_reader(compress_data("zstd", BIG))
    assert reader.read(len(BIG) + 1) == BIG


def test_gzip_header_has_no_timestamp_and_no_operating_system() -> None:
    assert compress_data("gzip", b"x")[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


@pytest.mark.parametrize("kind", KINDS)
def test_compression_is_detected_by_magic_bytes(kind: Compression) -> None:
    assert detect_compression(compress_data(kind, b"some content")[:4]) == kind


def test_several_members_or_frames_are_one_stream() -> None:
    assert (
        decompress_data("gzip", gzip.compress(b"a") + gzip.compress(b"") + gzip.compress(b"b"))
        == b"ab"
    )
    assert decompress_data("gzip", gzip.compress(b"a") + bytes(100)) == b"a"
    skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    frames = [zstandard.compress(b"a"), skippable, zstandard.compress(b"b"), skippable]
    assert decompress_data("zstd", b"".join(frames)) == b"ab"
    assert detect_compression(skippable) == "zstd"


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_damaged_stream_raises_layer_error(kind: Compression) -> None:
    data = compress_data(kind, BIG)
    with pytest.raises(LayerError):
        decompress_data(kind, b"no such thing at all")
    broken = bytearray(data)
    broken[len(data) // 2 : len(data) // 2 + 50] = bytes(50)
    with contextlib.suppress(LayerError):
        assert decompress_data(kind, bytes(broken)) != BIG


def test_truncated_gzip_stream_is_rejected() -> None:
    with pytest.raises(LayerError, match="truncated"):
        decompress_data("gzip", compress_data("gzip", BIG)[:-20])


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_decompression_bomb_is_rejected(kind: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compress, "_BOMB_FLOOR", 1 << 20)
    bomb = compress_data(kind, bytes(1 << 25))
    with pytest.raises(LayerError, match="decompression bomb"):
        decompress_data(kind, bomb)
