"""Download the layers of an image into the store, continuing what was interrupted."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio

from danlu.errors import ChecksumError, OutsideError
from danlu.oci.compress import Compression, open_decompressor
from danlu.oci.digest import DiffId
from danlu.oci.layer_status import LayerState, LayerStatus
from danlu.oci.reference import Reference
from danlu.oci.tar import extract_with_tar_split
from danlu.oci.tar.read import Readable
from danlu.oci.types import Descriptor, layer_compression
from danlu.sources.blob_locations import StoredBlobLocations
from danlu.store import Layer, PartialBlob, Store

if TYPE_CHECKING:
    from danlu.oci.registry import Registry


class LayerDownloader:
    """Downloads layers of one repository; ``report`` is called with each change of a layer."""

    def __init__(
        self,
        registry: Registry,
        named: Reference,
        store: Store,
        report: Callable[[LayerStatus], None],
    ) -> None:
        self._registry = registry
        self._named = named
        self._store = store
        self._report = report
        self._locations = StoredBlobLocations(store)

    async def fetch_layer(self, diff_id: DiffId, descriptor: Descriptor, made_by: str) -> Layer:
        """Return the layer, downloading it if the store lacks it."""
        kind = layer_compression(descriptor.media_type)
        layer = await anyio.to_thread.run_sync(self._store.layer, diff_id)
        state: LayerState = "exists"
        if layer is None:
            made_by = made_by or f"pulled from {self._named.familiar_name}"
            layer = await self._download_layer(diff_id, descriptor, kind, made_by)
            state = "done"
        await anyio.to_thread.run_sync(self._record_blob, diff_id, descriptor, kind)
        self._report(LayerStatus(diff_id, state, descriptor.size, descriptor.size))
        return layer

    def _record_blob(self, diff_id: DiffId, descriptor: Descriptor, kind: Compression) -> None:
        """Record what a later push needs to mount the layer instead of sending it."""
        if self._store.compressed_blob(diff_id, kind) is None:
            self._store.put_compressed_blob(diff_id, kind, descriptor.digest, descriptor.size)
        registry = self._registry
        repository = registry.repository_path(self._named.repository)
        self._locations.record_repository(
            registry.endpoint.host, repository, descriptor.digest, diff_id
        )

    async def _download_layer(
        self, diff_id: DiffId, descriptor: Descriptor, kind: Compression, made_by: str
    ) -> Layer:
        with self._store.partial_blob(descriptor.digest) as blob:
            if blob.received > descriptor.size:
                blob.restart()
            try:
                await self._receive_blob(blob, diff_id, descriptor)
            except ChecksumError:
                if not blob.received:
                    raise
                # The bytes of the earlier download may be what is wrong, for example after a
                # power failure.
                blob.restart()
                await self._receive_blob(blob, diff_id, descriptor)
            self._report(LayerStatus(diff_id, "unpacking", descriptor.size, descriptor.size))
            unpack = partial(_unpack_blob, self._store, blob, kind, diff_id, made_by)
            return await anyio.to_thread.run_sync(unpack)

    async def _receive_blob(
        self, blob: PartialBlob, diff_id: DiffId, descriptor: Descriptor
    ) -> None:
        current = 0

        def add_progress(size: int) -> None:
            nonlocal current
            current += size
            self._report(LayerStatus(diff_id, "transferring", current, descriptor.size))

        add_progress(0)
        await self._registry.download_blob(
            self._named.repository,
            descriptor,
            blob.file.write,
            received=blob.file,
            progress=add_progress,
        )


def _unpack_blob(
    store: Store, blob: PartialBlob, kind: Compression, diff_id: DiffId, made_by: str
) -> Layer:
    blob.file.seek(0)
    return store_layer(store, open_decompressor(kind, blob.file), diff_id, made_by)


def store_layer(store: Store, stream: Readable, diff_id: DiffId, made_by: str) -> Layer:
    """Unpack a layer's uncompressed tar into the store, verifying that its diff ID is
    ``diff_id``.

    Raises :class:`ChecksumError` if it is not.
    """
    with store.staging() as place:
        tree = place / "tree"
        tree.mkdir()
        # Independent of the umask: the root of a layer may become the root of a container.
        os.chmod(tree, 0o755)
        extracted = extract_with_tar_split(stream, tree)
        summary, recipe = extracted.summary, extracted.recipe
        if summary.diff_id != diff_id:
            raise ChecksumError(f"layer has diff ID {summary.diff_id}, but its image has {diff_id}")
        if recipe is None:
            raise OutsideError(
                f"layer {diff_id} is a tar that cannot be reproduced from its files",
                hint="please report which image this is",
            )
        return store.commit_layer(tree, summary, created_by=made_by, normalise=recipe)
