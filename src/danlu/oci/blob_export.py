"""Export layers: turn uncompressed layer tars into the compressed blobs of an image."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from danlu.errors import StoreError
from danlu.oci.compress import Compression, open_compressor
from danlu.oci.digest import DiffId, Digest
from danlu.oci.image import Image
from danlu.oci.tar.layer_paths import LayerSummary
from danlu.oci.types import (
    Descriptor,
    Index,
    Manifest,
    MediaType,
    ParsedDocument,
    Platform,
    encode_json,
)

_MEDIA_TYPES: dict[str, str] = {
    "none": MediaType.LAYER,
    "gzip": MediaType.LAYER_GZIP,
    "zstd": MediaType.LAYER_ZSTD,
}


class LayerBlob(msgspec.Struct, frozen=True):
    """A compressed form of a layer, and the file that contains it, if there is one."""

    kind: Compression
    digest: Digest
    size: int
    path: Path | None = None

    @property
    def descriptor(self) -> Descriptor:
        """The blob's descriptor for a manifest."""
        return Descriptor(_MEDIA_TYPES[self.kind], self.digest, self.size)


class LayerSource(Protocol):
    """Where layers to export come from: the store, or a test."""

    def find_blob(self, diff_id: DiffId, kind: Compression) -> LayerBlob | None:
        """Return a known blob of a layer, preferably compressed as ``kind``; its file may be gone.

        A source that cannot write a layer's tar again must return the blob whose file it has.
        """
        ...

    def size(self, diff_id: DiffId) -> int:
        """Return the size of a layer's uncompressed tar."""
        ...

    def write_tar(self, diff_id: DiffId, write: Callable[[bytes], object]) -> LayerSummary:
        """Write a layer's uncompressed tar."""
        ...

    def record_blob(self, diff_id: DiffId, blob: LayerBlob) -> None:
        """Record digest and size of a blob for :meth:`find_blob`. The file is not kept."""
        ...


def write_verified_tar(
    source: LayerSource, diff_id: DiffId, write: Callable[[bytes], object]
) -> int:
    """Write a layer's tar and return its size; raise :class:`StoreError` if its diff ID differs."""
    summary = source.write_tar(diff_id, write)
    if summary.diff_id != diff_id:
        raise StoreError(
            f"layer {diff_id} is damaged: its files now have the diff ID {summary.diff_id}",
            hint="remove damaged layers with `danlu image check --repair`, then build again",
        )
    return summary.size


def compress_layer(
    source: LayerSource, diff_id: DiffId, kind: Compression, path: Path
) -> LayerBlob:
    """Compress a layer into the new file ``path``, atomically."""
    digest = hashlib.sha256()
    size = 0
    # In the same directory, because rename(2) works within one file system.
    descriptor, name = tempfile.mkstemp(prefix=".making.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:

            def sink(data: bytes) -> None:
                nonlocal size
                digest.update(data)
                size += len(data)
                file.write(data)

            maker = open_compressor(kind, sink)
            write_verified_tar(source, diff_id, maker.write)
            maker.finish()
            file.flush()
            # mkstemp(3) creates it readable for its owner only.
            os.fchmod(file.fileno(), 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    blob = LayerBlob(kind, Digest("sha256:" + digest.hexdigest()), size, path)
    source.record_blob(diff_id, blob)
    return blob


def make_index(manifests: Sequence[Descriptor]) -> ParsedDocument[Index]:
    """Return the index of images for several platforms (image-index.md)."""
    index = Index(manifests=tuple(manifests), media_type=MediaType.INDEX)
    return ParsedDocument(encode_json(index), MediaType.INDEX, index)


def describe_manifest(manifest: ParsedDocument[Manifest], image: Image) -> Descriptor:
    """Return the descriptor of an image's manifest in an index, with the platform."""
    config = image.parsed
    platform = Platform(config.architecture, config.os, config.variant or "")
    return msgspec.structs.replace(manifest.descriptor, platform=platform)


def make_manifest(image: Image, blobs: Sequence[LayerBlob]) -> ParsedDocument[Manifest]:
    """Return the manifest of ``image`` with these blobs as its layers."""
    config = Descriptor(MediaType.CONFIG, image.digest, len(image.config))
    manifest = Manifest(
        config=config,
        layers=tuple(blob.descriptor for blob in blobs),
        media_type=MediaType.MANIFEST,
    )
    return ParsedDocument(encode_json(manifest), MediaType.MANIFEST, manifest)
