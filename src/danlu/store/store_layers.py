"""The layers of the store as a source of images."""

from __future__ import annotations

from collections.abc import Callable

from danlu.errors import StoreError
from danlu.oci.blob_export import LayerBlob
from danlu.oci.compress import Compression
from danlu.oci.digest import DiffId
from danlu.oci.tar import LayerSummary
from danlu.store.store import Store


class StoreLayers:
    """Layers of the store as a source of images: tars written from trees, and cached blobs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find_blob(self, diff_id: DiffId, kind: Compression) -> LayerBlob | None:
        """Return the layer's compressed blob, if it was written or pulled before."""
        blob = self._store.compressed_blob(diff_id, kind)
        if blob is None:
            return None
        return LayerBlob(kind, blob.digest, blob.size, self._store.blob(blob.digest))

    def size(self, diff_id: DiffId) -> int:
        """Return the size of the layer's uncompressed tar in bytes."""
        layer = self._store.layer(diff_id)
        if layer is None:
            raise StoreError(
                f"layer {diff_id} is missing from the store",
                hint="build again to recreate it",
            )
        return layer.size

    def write_tar(self, diff_id: DiffId, write: Callable[[bytes], object]) -> LayerSummary:
        """Write the layer's tar."""
        return self._store.write_tar(diff_id, write)

    def record_blob(self, diff_id: DiffId, blob: LayerBlob) -> None:
        """Record a blob's digest and size; equal layers compress to equal blobs."""
        self._store.put_compressed_blob(diff_id, blob.kind, blob.digest, blob.size)
