"""Push a whole image to a registry: compress and send only the layers that it lacks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import anyio

from danlu.oci.blob_export import (
    LayerBlob,
    LayerSource,
    compress_layer,
    describe_manifest,
    make_index,
    make_manifest,
)
from danlu.oci.compress import Compression
from danlu.oci.digest import DiffId
from danlu.oci.image import Image
from danlu.oci.registry.client import Registry
from danlu.oci.types import Descriptor
from danlu.util.tasks import run_concurrently

#: Compression already uses all cores, so only one layer is compressed at a time.
_MAX_TRANSFERS = 8
_MAX_COMPRESSORS = 1


async def push_image(
    registry: Registry,
    repository: str,
    image: Image,
    source: LayerSource,
    *,
    scratch: Path,
    tags: Sequence[str] = (),
    kind: Compression = "zstd",
    mount_from: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Descriptor:
    """Push ``image`` under ``tags``, or only its digest; return its manifest's descriptor.

    A layer is neither compressed nor sent if its blob is known and the registry has it, in
    ``repository`` or in one of ``mount_from``. ``scratch`` is a directory for temporary blobs.
    ``progress`` is called with the bytes sent and the bytes to send, as far as they are known.
    """
    push = _ImagePush(registry, repository, source, scratch, kind, mount_from, progress)
    return await push.push_image(image, tags)


async def push_index(
    registry: Registry,
    repository: str,
    images: Sequence[Image],
    source: LayerSource,
    *,
    scratch: Path,
    tags: Sequence[str] = (),
    kind: Compression = "zstd",
    progress: Callable[[int, int], None] | None = None,
) -> Descriptor:
    """Push ``images``, one for each platform, and an index of them under ``tags``.

    As :func:`push_image`; the images themselves have no tags. Returns the index's descriptor.
    """
    push = _ImagePush(registry, repository, source, scratch, kind, (), progress)
    index = make_index([await push.push_image(image) for image in images])
    for tag in tags or ("",):
        await registry.push_manifest(repository, index, tag)
    return index.descriptor


class _ImagePush:
    def __init__(
        self,
        registry: Registry,
        repository: str,
        source: LayerSource,
        scratch: Path,
        kind: Compression,
        mount_from: Sequence[str],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._registry = registry
        self._repository = repository
        self._source = source
        self._scratch = scratch
        self._kind = kind
        self._mount_from = [
            source_repository for source_repository in mount_from if source_repository != repository
        ]
        self._progress = progress
        self._sent = self._to_send = 0
        self._compressors = anyio.CapacityLimiter(_MAX_COMPRESSORS)

    async def push_image(self, image: Image, tags: Sequence[str] = ()) -> Descriptor:
        """Push an image under ``tags``, or only its digest; return its manifest's descriptor."""
        blobs = await self.push_layers(image.diff_ids)
        manifest = make_manifest(image, blobs)
        if not await self._registry.has_blob(self._repository, image.digest, push=True):
            await self._registry.push_blob(self._repository, image.digest, image.config)
        for tag in tags or ("",):
            await self._registry.push_manifest(self._repository, manifest, tag)
        return describe_manifest(manifest, image)

    async def push_layers(self, diff_ids: Sequence[DiffId]) -> list[LayerBlob]:
        """Make sure that the repository has every layer; return their blobs in order."""
        distinct = list(dict.fromkeys(diff_ids))
        jobs = [partial(self._push_layer, diff_id) for diff_id in distinct]
        blobs = dict(zip(distinct, await run_concurrently(jobs, limit=_MAX_TRANSFERS), strict=True))
        return [blobs[diff_id] for diff_id in diff_ids]

    async def _push_layer(self, diff_id: DiffId) -> LayerBlob:
        known = await anyio.to_thread.run_sync(self._source.find_blob, diff_id, self._kind)
        if known is not None:
            if await self._exists_or_mounts(known):
                return known
            if known.path is not None:
                await self._send_blob(known, known.path)
                return known
        self._scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".push.", dir=self._scratch) as scratch:
            path = Path(scratch, "blob")
            blob = await anyio.to_thread.run_sync(
                compress_layer, self._source, diff_id, self._kind, path, limiter=self._compressors
            )
            if (
                known is not None and known.digest == blob.digest
            ) or not await self._exists_or_mounts(blob):
                await self._send_blob(blob, path)
        return blob

    async def _exists_or_mounts(self, blob: LayerBlob) -> bool:
        if await self._registry.has_blob(self._repository, blob.digest, push=True):
            return True
        for source in self._mount_from:
            if await self._registry.mount_blob(self._repository, blob.digest, source):
                return True
        return False

    async def _send_blob(self, blob: LayerBlob, path: Path) -> None:
        self._to_send += blob.size
        await self._registry.push_blob(
            self._repository, blob.digest, path, progress=self._report_progress
        )

    def _report_progress(self, size: int) -> None:
        self._sent += size
        if self._progress is not None:
            self._progress(self._sent, self._to_send)
