"""Images of registries: resolve references to digests, pull into the store, and push."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import anyio
import msgspec

from danlu.errors import ChecksumError, OutsideError
from danlu.graph.ops import Platform
from danlu.oci.blob_export import LayerSource
from danlu.oci.compress import Compression, open_decompressor
from danlu.oci.digest import DiffId, Digest, parse_digest
from danlu.oci.image import Image, select_platform
from danlu.oci.reference import Reference
from danlu.oci.tar import extract_with_tar_split
from danlu.oci.tar.read import Readable
from danlu.oci.types import Descriptor, Index, Manifest, ParsedDocument, layer_compression
from danlu.sandbox.emulation import host_platform
from danlu.store import Layer, Store
from danlu.util.config import Configuration
from danlu.util.retry import RetryPolicy
from danlu.util.tasks import run_concurrently

# danlu.oci.registry loads aiohttp, which takes longer than everything else here. It is imported
# where a registry is contacted: an image that is already in the store needs none.
if TYPE_CHECKING:
    from danlu.oci.registry import Registry, RegistryEndpoint

_T = TypeVar("_T")
#: Layers downloaded at the same time; Docker's default, too.
_MAX_CONCURRENT_LAYERS = 3

#: Limit for indexes that refer to indexes, which could be a loop.
_MAX_INDEXES = 3


class PulledImage(msgspec.Struct, frozen=True):
    """An image in the store: its layers, lowest first, and its config exactly as received."""

    layers: tuple[Layer, ...]
    config: bytes


async def resolve_reference(
    reference: str, platform: Platform, *, config: Configuration, offline: bool = False
) -> Digest:
    """Return the digest of the manifest that ``reference`` currently has for ``platform``.

    Raises :class:`OutsideError` if there is none, or with ``offline``.
    """
    named = Reference.parse(reference)
    if offline:
        raise OutsideError(
            f"cannot resolve image {named.familiar_name} with --offline",
            hint="build from a lockfile that contains it, or without --offline",
        )

    async def ask(registry: Registry) -> Digest:
        manifest = await _fetch_manifest(registry, named, named.target, platform)
        image = await registry.get_image(named.repository, manifest.value)
        made_for = Platform(image.parsed.os, image.parsed.architecture)
        # A reference to a plain manifest has one platform, which may not be the wanted one.
        if (made_for.os, made_for.architecture) != (platform.os, platform.architecture):
            raise OutsideError(
                f"{named.familiar_name} does not support {platform}",
                hint=f"it is for {made_for}",
            )
        return manifest.digest

    return await _try_mirror_first(named, config, ask)


async def _fetch_manifest(
    registry: Registry, named: Reference, target: str, platform: Platform
) -> ParsedDocument[Manifest]:
    """Return the manifest of ``target``, selected by platform if that is an index."""
    for _ in range(_MAX_INDEXES):
        document = await registry.get_manifest(named.repository, target)
        if not isinstance(document.value, Index):
            return ParsedDocument(document.raw, document.media_type, document.value)
        target = select_platform(
            document.value,
            os=platform.os,
            architecture=platform.architecture,
            variant=platform.variant,
            name=named.familiar_name,
        ).digest
    raise OutsideError(f"{named.familiar_name}: indexes are nested too deeply")


async def pull(
    reference: str,
    digest: str,
    *,
    store: Store,
    config: Configuration,
    platform: Platform | None = None,
    offline: bool = False,
    transfer: Callable[[int, int], None] | None = None,
) -> PulledImage:
    """Pull the image ``digest`` from the repository of ``reference`` into the store.

    ``digest`` is the config digest of an image in the store (see :func:`find_local_digest`), or the
    digest of a manifest, or of an index from which the manifest for ``platform``
    (default: this machine's) is selected. Only missing layers are downloaded. All bytes are
    verified twice: against their digests before they are unpacked, and against the image's diff IDs
    afterwards. ``transfer`` is called with the bytes downloaded and the total. Raises
    :class:`OutsideError` if the registry refuses or lacks something, or with ``offline`` if the
    image is not in the store.
    """
    named = Reference.parse(reference).with_digest(parse_digest(digest))
    wanted = platform or host_platform()
    key = f"image:{digest}:{wanted}"
    with store.lease():
        known = _lookup_pulled_image(store, key) or _lookup_stored_image(store, digest)
        if known is not None:
            return known
        if offline:
            raise OutsideError(
                f"image {named.familiar_name} is not in the store and cannot be pulled"
                " with --offline"
            )
        fetch = partial(
            _pull_layers, named=named, platform=wanted, key=key, store=store, moved=transfer
        )
        try:
            return await _try_mirror_first(named, config, fetch)
        except OutsideError as error:
            # The lock may be that of a machine whose store has the image.
            name = msgspec.structs.replace(named, digest=None).familiar_name
            raise_with_local_hint(error, name)


def raise_with_local_hint(error: OutsideError, name: str) -> NoReturn:
    """Raise the error of a registry that lacks an image, saying how this machine can have it."""
    if error.hint.startswith("check the name"):
        error.hint += (
            f"; an image of your own: `danlu build -t {name}`, then `danlu lock --upgrade`"
        )
    raise error


def find_local_digest(reference: str, platform: Platform, *, store: Store) -> Digest | None:
    """Return the config digest of the image that was built or loaded under this name.

    An image that was pulled belongs to its registry, whose digest can be used on any machine.
    """
    named = Reference.parse(reference)
    if named.digest:
        return None
    image = store.image(named.familiar_name)
    if image is None or named.familiar_name not in image.names or "manifest" in image.metadata:
        return None
    config = msgspec.json.decode(image.config)
    made_for = (config.get("os"), config.get("architecture"))
    return image.digest if made_for == (platform.os, platform.architecture) else None


def _lookup_stored_image(store: Store, digest: str) -> PulledImage | None:
    image = store.image(digest)
    if image is None or image.digest != digest:
        return None
    layers = [store.layer(diff_id) for diff_id in image.layers]
    if None in layers:
        return None
    return PulledImage(tuple(layer for layer in layers if layer is not None), image.config)


def _lookup_pulled_image(store: Store, key: str) -> PulledImage | None:
    record = store.record(key)
    if record is None:
        return None
    layers = [store.layer(diff_id) for diff_id in record["layers"]]
    blob = store.blob(record["config"])
    if blob is None or None in layers:
        return None
    return PulledImage(tuple(layer for layer in layers if layer is not None), blob.read_bytes())


async def _pull_layers(
    registry: Registry,
    *,
    named: Reference,
    platform: Platform,
    key: str,
    store: Store,
    moved: Callable[[int, int], None] | None,
) -> PulledImage:
    manifest = await _fetch_manifest(registry, named, named.target, platform)
    image = await registry.get_image(named.repository, manifest.value)
    fetch = _LayerFetcher(registry, named, store, moved)
    # By diff ID: an image can contain the same layer more than once.
    jobs = {
        diff_id: partial(fetch.fetch_layer, diff_id, descriptor, made_by)
        for diff_id, descriptor, made_by in zip(
            image.diff_ids, manifest.value.layers, image.created_by, strict=True
        )
    }
    made = dict(
        zip(jobs, await run_concurrently(jobs.values(), limit=_MAX_CONCURRENT_LAYERS), strict=True)
    )
    layers = tuple(made[diff_id] for diff_id in image.diff_ids)
    kept = store.put_blob(image.config)
    store.put_record(
        key,
        {"config": kept, "layers": list(image.diff_ids)},
        layers=image.diff_ids,
        blobs=[kept],
    )
    return PulledImage(layers, image.config)


class _LayerFetcher:
    """Downloads layers into the store and reports the total progress."""

    def __init__(
        self,
        registry: Registry,
        named: Reference,
        store: Store,
        moved: Callable[[int, int], None] | None,
    ) -> None:
        self._registry = registry
        self._named = named
        self._store = store
        self._moved = moved
        self._current = self._total = 0

    async def fetch_layer(self, diff_id: DiffId, descriptor: Descriptor, made_by: str) -> Layer:
        """Return the layer, downloading it if the store lacks it."""
        kind = layer_compression(descriptor.media_type)
        known = await anyio.to_thread.run_sync(self._store.layer, diff_id)
        if known is not None:
            return known
        self._total += descriptor.size
        with self._store.staging() as place:
            blob = place / "blob"
            with blob.open("wb") as file:
                await self._registry.download_blob(
                    self._named.repository, descriptor, file.write, progress=self._report_progress
                )
            made_by = made_by or f"pulled from {self._named.familiar_name}"
            unpack = partial(_unpack_file, self._store, blob, kind, diff_id, made_by)
            layer = await anyio.to_thread.run_sync(unpack)
        self._store.put_compressed_blob(diff_id, kind, descriptor.digest, descriptor.size)
        return layer

    def _report_progress(self, size: int) -> None:
        self._current += size
        if self._moved is not None:
            self._moved(self._current, self._total)


def _unpack_file(
    store: Store, blob: Path, kind: Compression, diff_id: DiffId, made_by: str
) -> Layer:
    with blob.open("rb") as file:
        return store_layer(store, open_decompressor(kind, file), diff_id, made_by)


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


async def push(
    name: str,
    image: Image,
    source: LayerSource,
    *,
    others: Sequence[Image] = (),
    config: Configuration,
    scratch: Path,
    kind: Compression = "zstd",
    transfer: Callable[[int, int], None] | None = None,
) -> Digest:
    """Push ``image`` to the reference ``name``; return the digest of its manifest.

    With ``others``, the same image for other platforms, that of an index of all of them.
    Only what the registry lacks is compressed and uploaded. ``scratch`` is a directory for
    temporary blobs.
    """
    from danlu.oci.registry import Registry, push_image, push_index

    named = Reference.parse(name)
    async with Registry(_make_endpoint(named.registry, config)) as registry:
        send = (
            partial(push_index, images=(image, *others))
            if others
            else partial(push_image, image=image)
        )
        pushed = await send(
            registry,
            named.repository,
            source=source,
            scratch=scratch,
            tags=[named.tag] if named.tag else [],
            kind=kind,
            progress=transfer,
        )
    if named.digest and named.digest != pushed.digest:
        raise OutsideError(f"{named.familiar_name} was pushed with another digest: {pushed.digest}")
    return pushed.digest


async def _try_mirror_first(
    named: Reference, config: Configuration, job: Callable[[Registry], Awaitable[_T]]
) -> _T:
    """Run ``job`` on the user's mirror of the registry, falling back to the registry itself."""
    from danlu.oci.registry import Registry

    access = config.registries.get(named.registry)
    if access is not None and access.mirror:
        try:
            async with Registry(
                _mirror_endpoint(access.mirror, config), backoff=RetryPolicy(2)
            ) as registry:
                return await job(registry)
        except ChecksumError:
            raise  # a mirror that serves modified data must not go unnoticed
        except OutsideError:
            pass
    async with Registry(_make_endpoint(named.registry, config)) as registry:
        return await job(registry)


def _make_endpoint(host: str, config: Configuration, prefix: str = "") -> RegistryEndpoint:
    from danlu.oci.registry import RegistryEndpoint

    access = config.registries.get(host)
    if access is None:
        return RegistryEndpoint(host, prefix=prefix)
    return RegistryEndpoint(host, insecure=access.insecure, ca=access.ca, prefix=prefix)


def _mirror_endpoint(text: str, config: Configuration) -> RegistryEndpoint:
    """Parse ``HOST[:PORT][/PREFIX]``, with or without a scheme."""
    bare = text.removeprefix("https://").removeprefix("http://").strip("/")
    host, _, prefix = bare.partition("/")
    return _make_endpoint(host, config, prefix)
