"""Layers on their way out: uncompressed tars of a source, made into the blobs of an image."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from danlu.errors import StoreError
from danlu.oci.compress import Compression, compressor
from danlu.oci.digest import DiffId, Digest
from danlu.oci.image import Image
from danlu.oci.tar.summary import LayerSummary
from danlu.oci.types import Descriptor, Document, Manifest, MediaType, encode

__all__ = ["Blob", "LayerSource", "checked_tar", "make_manifest", "produce"]

_MEDIA_TYPES: dict[str, str] = {
    "none": MediaType.LAYER,
    "gzip": MediaType.LAYER_GZIP,
    "zstd": MediaType.LAYER_ZSTD,
}


class Blob(msgspec.Struct, frozen=True):
    """A layer's compressed form: what it is called, and the file that has it, if one does."""

    kind: Compression
    digest: Digest
    size: int
    path: Path | None = None

    @property
    def descriptor(self) -> Descriptor:
        """As a manifest names it."""
        return Descriptor(_MEDIA_TYPES[self.kind], self.digest, self.size)


class LayerSource(Protocol):
    """Where layers come from: a store, an archive, a test."""

    def known(self, diff_id: DiffId, kind: Compression) -> Blob | None:
        """The form of a layer that has been made before, preferably ``kind``; its file may be gone.

        A source that cannot write the tar of a layer again gives the form it has the file of.
        """
        ...

    def size(self, diff_id: DiffId) -> int:
        """The bytes of a layer's uncompressed tar."""
        ...

    def write_tar(self, diff_id: DiffId, write: Callable[[bytes], object]) -> LayerSummary:
        """Write a layer's uncompressed tar."""
        ...

    def remember(self, diff_id: DiffId, blob: Blob) -> None:
        """What :meth:`known` shall answer; the file is not kept."""
        ...


def checked_tar(source: LayerSource, diff_id: DiffId, write: Callable[[bytes], object]) -> int:
    """Write a layer's tar and give its bytes; :class:`StoreError` where it is another's."""
    summary = source.write_tar(diff_id, write)
    if summary.diff_id != diff_id:
        raise StoreError(
            f"the layer {diff_id} is damaged: its files have become {summary.diff_id}",
            hint="`danlu image check --repair` removes what is broken; build again after it",
        )
    return summary.size


def produce(source: LayerSource, diff_id: DiffId, kind: Compression, path: Path) -> Blob:
    """Make a layer's compressed form in the new file ``path``, all at once or not at all."""
    digest = hashlib.sha256()
    size = 0
    descriptor, name = tempfile.mkstemp(prefix=".making.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:

            def sink(data: bytes) -> None:
                nonlocal size
                digest.update(data)
                size += len(data)
                file.write(data)

            maker = compressor(kind, sink)
            checked_tar(source, diff_id, maker.write)
            maker.finish()
            file.flush()
            os.fchmod(file.fileno(), 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    blob = Blob(kind, Digest("sha256:" + digest.hexdigest()), size, path)
    source.remember(diff_id, blob)
    return blob


def make_manifest(image: Image, blobs: Sequence[Blob]) -> Document[Manifest]:
    """The manifest of ``image`` with its layers in these forms."""
    config = Descriptor(MediaType.CONFIG, image.digest, len(image.config))
    manifest = Manifest(
        config=config,
        layers=tuple(one.descriptor for one in blobs),
        media_type=MediaType.MANIFEST,
    )
    return Document(encode(manifest), MediaType.MANIFEST, manifest)
