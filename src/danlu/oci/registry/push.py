"""Push a whole image to a registry: compress and send only the layers that it lacks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

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
from danlu.oci.digest import DiffId, Digest
from danlu.oci.image import Image
from danlu.oci.layer_status import LayerState, LayerStatus
from danlu.oci.registry.client import Registry
from danlu.oci.types import Descriptor
from danlu.util.tasks import run_concurrently

#: Compression already uses all cores, so only one layer is compressed at a time.
_MAX_TRANSFERS = 8
# One at a time, because a compressor already uses all processors.
_MAX_COMPRESSORS = 1
#: Other repositories to try before a blob is sent: each costs a request.
_MAX_MOUNT_ATTEMPTS = 2
#: A registry that failed this often, and never mounted a blob, does not do that.
_MAX_MOUNT_FAILURES = 6


class BlobLocations(Protocol):
    """Which repositories of a registry are known to have a blob."""

    def find_repositories(self, registry: str, digest: Digest) -> Sequence[str]:
        """Return repositories of the registry that may have the blob, the most likely first."""
        ...

    def record_repository(
        self, registry: str, repository: str, digest: Digest, diff_id: DiffId
    ) -> None:
        """Record that a repository has the blob of a layer."""
        ...


async def push_image(
    registry: Registry,
    repository: str,
    image: Image,
    source: LayerSource,
    *,
    scratch: Path,
    tags: Sequence[str] = (),
    kind: Compression = "zstd",
    locations: BlobLocations | None = None,
    report: Callable[[LayerStatus], None] | None = None,
) -> Descriptor:
    """Push ``image`` under ``tags``, or only its digest; return its manifest's descriptor.

    A layer is neither compressed nor sent if its blob is known and the registry has it, in
    ``repository`` or in another one of ``locations``. ``scratch`` is a directory for temporary
    blobs. ``report`` is called with each change of a layer.
    """
    push = _ImagePush(registry, repository, source, scratch, kind, locations, report)
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
    locations: BlobLocations | None = None,
    report: Callable[[LayerStatus], None] | None = None,
) -> Descriptor:
    """Push ``images``, one for each platform, and an index of them under ``tags``.

    As :func:`push_image`; the images themselves have no tags. Returns the index's descriptor.
    """
    push = _ImagePush(registry, repository, source, scratch, kind, locations, report)
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
        locations: BlobLocations | None,
        report: Callable[[LayerStatus], None] | None,
    ) -> None:
        self._registry = registry
        self._repository = repository
        self._path = registry.repository_path(repository)
        self._source = source
        self._scratch = scratch
        self._kind = kind
        self._locations = locations
        self._report = report or _ignore_status
        self._compressors = anyio.CapacityLimiter(_MAX_COMPRESSORS)
        #: Attempts to mount a blob, up to the first that succeeded.
        self._mount_failures = 0
        self._mounts_work = False

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
        await anyio.to_thread.run_sync(self._report_waiting, distinct)
        jobs = [partial(self._push_layer, diff_id) for diff_id in distinct]
        blobs = dict(zip(distinct, await run_concurrently(jobs, limit=_MAX_TRANSFERS), strict=True))
        return [blobs[diff_id] for diff_id in diff_ids]

    def _report_waiting(self, diff_ids: Sequence[DiffId]) -> None:
        for diff_id in diff_ids:
            self._report(LayerStatus(diff_id, "waiting", 0, self._estimate_size(diff_id)))

    def _estimate_size(self, diff_id: DiffId) -> int:
        known = self._source.find_blob(diff_id, self._kind)
        return known.size if known is not None else self._source.size(diff_id)

    async def _push_layer(self, diff_id: DiffId) -> LayerBlob:
        known = await anyio.to_thread.run_sync(self._source.find_blob, diff_id, self._kind)
        if known is not None:
            if await self._exists_or_mounts(known, diff_id):
                return known
            if known.path is not None:
                await self._send_blob(known, known.path, diff_id)
                return known
        self._scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".push.", dir=self._scratch) as scratch:
            path = Path(scratch, "blob")
            blob = await self._compress_layer(diff_id, path)
            if (
                known is not None and known.digest == blob.digest
            ) or not await self._exists_or_mounts(blob, diff_id):
                await self._send_blob(blob, path, diff_id)
        return blob

    async def _compress_layer(self, diff_id: DiffId, path: Path) -> LayerBlob:
        async with self._compressors:
            self._report(LayerStatus(diff_id, "compressing", 0, self._estimate_size(diff_id)))
            return await anyio.to_thread.run_sync(
                compress_layer, self._source, diff_id, self._kind, path
            )

    async def _exists_or_mounts(self, blob: LayerBlob, diff_id: DiffId) -> bool:
        state: LayerState | None = None
        if await self._registry.has_blob(self._repository, blob.digest, push=True):
            state = "exists"
        elif await self._try_mounts(blob.digest):
            state = "mounted"
        if state is None:
            return False
        self._report(LayerStatus(diff_id, state, blob.size, blob.size))
        await self._record_repository(blob.digest, diff_id)
        return True

    async def _try_mounts(self, digest: Digest) -> bool:
        if self._locations is None:
            return False
        repositories = await anyio.to_thread.run_sync(
            self._locations.find_repositories, self._registry.endpoint.host, digest
        )
        others = [repository for repository in repositories if repository != self._path]
        # Few, because a registry that does not mount the blob starts an upload for each attempt
        # (distribution-spec, "Mounting a blob from another repository").
        for source in others[:_MAX_MOUNT_ATTEMPTS]:
            if self._mount_failures >= _MAX_MOUNT_FAILURES and not self._mounts_work:
                break
            if await self._registry.mount_blob(self._repository, digest, source):
                self._mounts_work = True
                return True
            self._mount_failures += 1
        return False

    async def _record_repository(self, digest: Digest, diff_id: DiffId) -> None:
        if self._locations is not None:
            host = self._registry.endpoint.host
            await anyio.to_thread.run_sync(
                self._locations.record_repository, host, self._path, digest, diff_id
            )

    async def _send_blob(self, blob: LayerBlob, path: Path, diff_id: DiffId) -> None:
        sent = 0

        def add_progress(size: int) -> None:
            nonlocal sent
            sent += size
            self._report(LayerStatus(diff_id, "transferring", sent, blob.size))

        add_progress(0)
        await self._registry.push_blob(self._repository, blob.digest, path, progress=add_progress)
        self._report(LayerStatus(diff_id, "done", blob.size, blob.size))
        await self._record_repository(blob.digest, diff_id)


def _ignore_status(_: LayerStatus) -> None:
    pass
