"""A whole image on its way to a registry: only what it lacks is made, and sent."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import anyio

from danlu.oci.compress import Compression
from danlu.oci.digest import DiffId
from danlu.oci.exporting import Blob, LayerSource, make_manifest, produce
from danlu.oci.image import Image
from danlu.oci.registry.client import Registry
from danlu.oci.registry.together import together
from danlu.oci.types import Descriptor

__all__ = ["push_image"]

#: Layers in transfer at once, and layers being compressed at once.
_TRANSFERS = 8
_COMPRESSORS = 1


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
    """Push ``image`` under ``tags``, or under its digest alone; gives its manifest's descriptor.

    A layer whose blob was made or pulled before and that the registry has, in ``repository`` or in
    one of ``mount_from``, is neither compressed nor sent. ``scratch`` is a directory for blobs in
    the making. ``progress`` is called with the bytes sent and to send as far as is known.
    """
    push = _Push(registry, repository, source, scratch, kind, mount_from, progress)
    blobs = await push.layers(image.diff_ids)
    manifest = make_manifest(image, blobs)
    if not await registry.has_blob(repository, image.digest, push=True):
        await registry.push_blob(repository, image.digest, image.config)
    for tag in tags or ("",):
        await registry.push_manifest(repository, manifest, tag)
    return manifest.descriptor


class _Push:
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
        self._mount_from = [one for one in mount_from if one != repository]
        self._progress = progress
        self._sent = self._to_send = 0
        self._compressors = anyio.CapacityLimiter(_COMPRESSORS)

    async def layers(self, diff_ids: Sequence[DiffId]) -> list[Blob]:
        """Have every layer in the repository; gives their blobs in order."""
        distinct = list(dict.fromkeys(diff_ids))
        jobs = [partial(self._layer, diff_id) for diff_id in distinct]
        made = dict(zip(distinct, await together(jobs, limit=_TRANSFERS), strict=True))
        return [made[diff_id] for diff_id in diff_ids]

    async def _layer(self, diff_id: DiffId) -> Blob:
        known = await anyio.to_thread.run_sync(self._source.known, diff_id, self._kind)
        if known is not None:
            if await self._is_there(known):
                return known
            if known.path is not None:
                await self._send(known, known.path)
                return known
        self._scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".push.", dir=self._scratch) as place:
            path = Path(place, "blob")
            blob = await anyio.to_thread.run_sync(
                produce, self._source, diff_id, self._kind, path, limiter=self._compressors
            )
            if (known is not None and known.digest == blob.digest) or not await self._is_there(
                blob
            ):
                await self._send(blob, path)
        return blob

    async def _is_there(self, blob: Blob) -> bool:
        if await self._registry.has_blob(self._repository, blob.digest, push=True):
            return True
        for source in self._mount_from:
            if await self._registry.mount(self._repository, blob.digest, source):
                return True
        return False

    async def _send(self, blob: Blob, path: Path) -> None:
        self._to_send += blob.size
        await self._registry.push_blob(self._repository, blob.digest, path, progress=self._moved)

    def _moved(self, size: int) -> None:
        self._sent += size
        if self._progress is not None:
            self._progress(self._sent, self._to_send)
