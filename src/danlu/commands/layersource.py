"""The store as the source of layers that images are written and pushed from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from danlu.errors import StoreError
from danlu.oci.compress import Compression
from danlu.oci.digest import DiffId
from danlu.oci.exporting import Blob

if TYPE_CHECKING:
    from danlu.oci.tar import LayerSummary
    from danlu.store import Store

__all__ = ["StoreLayers"]


class StoreLayers:
    """Layers of a store: their tars made from the trees, their blobs remembered."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def known(self, diff_id: DiffId, kind: Compression) -> Blob | None:
        """The layer's blob of that kind, if one was made or pulled before."""
        made = self._store.compressed(diff_id, kind)
        if made is None:
            return None
        return Blob(kind, made.digest, made.size, self._store.blob(made.digest))

    def size(self, diff_id: DiffId) -> int:
        """The bytes of the layer's uncompressed tar."""
        layer = self._store.layer(diff_id)
        if layer is None:
            raise StoreError(
                f"the layer {diff_id} is gone from the store", hint="build again, it is made anew"
            )
        return layer.size

    def write_tar(self, diff_id: DiffId, write: Callable[[bytes], object]) -> LayerSummary:
        """Write the layer's tar."""
        return self._store.write_tar(diff_id, write)

    def remember(self, diff_id: DiffId, blob: Blob) -> None:
        """Remember digest and size of a blob; equal layers compress to equal blobs."""
        self._store.put_compressed(diff_id, blob.kind, blob.digest, blob.size)
