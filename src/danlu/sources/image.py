"""Images of registries: names resolved to digests, layers pulled into the store, images pushed."""

from __future__ import annotations

import os
import platform as machine
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from danlu.errors import ChecksumError, OutsideError
from danlu.graph import Platform
from danlu.oci.compress import decompressed
from danlu.oci.digest import DiffId, Digest, parse_digest
from danlu.oci.reference import Reference
from danlu.oci.tar import extract_with_recipe
from danlu.oci.types import Descriptor, Document, Index, Manifest, layer_compression

if TYPE_CHECKING:
    from danlu.oci.compress import Compression
    from danlu.oci.exporting import LayerSource
    from danlu.oci.image import Image
    from danlu.oci.registry import Endpoint, Registry
    from danlu.oci.tar.read import Readable
    from danlu.store import Layer, Store
    from danlu.util.config import Configuration

__all__ = ["Pulled", "keep_layer", "pull", "push", "resolve", "this_platform"]

_T = TypeVar("_T")
_LAYERS_AT_ONCE = 3
_MAX_INDEXES = 3
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Pulled(msgspec.Struct, frozen=True):
    """An image that is in the store: its layers lowest first, its config as it came."""

    layers: tuple[Layer, ...]
    config: bytes


def this_platform() -> Platform:
    """What this machine runs."""
    name = machine.machine()
    return Platform("linux", _ARCHITECTURES.get(name, name))


async def resolve(
    reference: str, platform: Platform, *, config: Configuration, offline: bool = False
) -> Digest:
    """The digest of the manifest that ``reference`` names now for ``platform``.

    Raises :class:`OutsideError` where there is none, or with ``offline``.
    """
    named = Reference.parse(reference)
    if offline:
        raise OutsideError(
            f"--offline forbids to ask which image {named.familiar} is",
            hint="build from a lock that names it, or without --offline",
        )

    async def ask(registry: Registry) -> Digest:
        manifest = await _manifest(registry, named, named.target, platform)
        image = await registry.image(named.repository, manifest.value)
        made_for = Platform(image.parsed.os, image.parsed.architecture)
        # A name without an index is for whatever its maker had.
        if (made_for.os, made_for.architecture) != (platform.os, platform.architecture):
            raise OutsideError(
                f"{named.familiar} is not made for {platform}", hint=f"it is made for {made_for}"
            )
        return manifest.digest

    return await _asking(named, config, ask)


async def _manifest(
    registry: Registry, named: Reference, target: str, platform: Platform
) -> Document[Manifest]:
    """The manifest of ``target``, chosen by platform where that is an index."""
    from danlu.oci.registry import pick

    for _ in range(_MAX_INDEXES):
        document = await registry.manifest(named.repository, target)
        if not isinstance(document.value, Index):
            return Document(document.raw, document.media_type, document.value)
        target = pick(
            document.value,
            os=platform.os,
            architecture=platform.architecture,
            variant=platform.variant,
            name=named.familiar,
        ).digest
    raise OutsideError(f"{named.familiar} is an index of indexes, too deep to follow")


async def pull(
    reference: str,
    digest: str,
    *,
    store: Store,
    config: Configuration,
    platform: Platform | None = None,
    offline: bool = False,
    transfer: Callable[[int, int], None] | None = None,
) -> Pulled:
    """Have the image ``digest`` of the repository of ``reference`` in the store.

    ``digest`` is that of a manifest, or of an index, of which ``platform`` (else this machine's)
    is taken. Only layers that the store lacks are fetched; all bytes are verified, against their
    digests before they are unpacked, and against the image's diff ids after it. ``transfer`` is
    called with bytes fetched and to fetch. Raises :class:`OutsideError` for what the registry
    refuses or lacks, or with ``offline`` and an image that is not here.
    """
    named = Reference.parse(reference).with_digest(parse_digest(digest))
    wanted = platform or this_platform()
    key = f"image:{digest}:{wanted}"
    with store.lease():
        known = _remembered(store, key)
        if known is not None:
            return known
        if offline:
            raise OutsideError(
                f"the image {named.familiar} is not in the store, and --offline forbids to pull it"
            )
        fetch = partial(_pull, named=named, platform=wanted, key=key, store=store, moved=transfer)
        return await _asking(named, config, fetch)


def _remembered(store: Store, key: str) -> Pulled | None:
    record = store.record(key)
    if record is None:
        return None
    layers = [store.layer(diff_id) for diff_id in record["layers"]]
    blob = store.blob(record["config"])
    if blob is None or None in layers:
        return None
    return Pulled(tuple(one for one in layers if one is not None), blob.read_bytes())


async def _pull(
    registry: Registry,
    *,
    named: Reference,
    platform: Platform,
    key: str,
    store: Store,
    moved: Callable[[int, int], None] | None,
) -> Pulled:
    from danlu.oci.registry.together import together

    manifest = await _manifest(registry, named, named.target, platform)
    image = await registry.image(named.repository, manifest.value)
    fetch = _Fetch(registry, named, store, moved)
    jobs = {
        diff_id: partial(fetch.layer, diff_id, descriptor, made_by)
        for diff_id, descriptor, made_by in zip(
            image.diff_ids, manifest.value.layers, image.created_by, strict=True
        )
    }
    made = dict(zip(jobs, await together(jobs.values(), limit=_LAYERS_AT_ONCE), strict=True))
    layers = tuple(made[diff_id] for diff_id in image.diff_ids)
    kept = store.put_blob(image.config)
    store.put_record(
        key,
        {"config": kept, "layers": list(image.diff_ids)},
        layers=image.diff_ids,
        blobs=[kept],
    )
    return Pulled(layers, image.config)


class _Fetch:
    """Layers on their way into the store."""

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

    async def layer(self, diff_id: DiffId, descriptor: Descriptor, made_by: str) -> Layer:
        """The layer, fetched where the store lacks it."""
        import anyio

        kind = layer_compression(descriptor.media_type)
        known = await anyio.to_thread.run_sync(self._store.layer, diff_id)
        if known is not None:
            return known
        self._total += descriptor.size
        with self._store.staging() as place:
            blob = place / "blob"
            with blob.open("wb") as file:
                await self._registry.blob(
                    self._named.repository, descriptor, file.write, progress=self._progress
                )
            made_by = made_by or f"pulled from {self._named.familiar}"
            unpack = partial(_unpack_file, self._store, blob, kind, diff_id, made_by)
            layer = await anyio.to_thread.run_sync(unpack)
        self._store.put_compressed(diff_id, kind, descriptor.digest, descriptor.size)
        return layer

    def _progress(self, size: int) -> None:
        self._current += size
        if self._moved is not None:
            self._moved(self._current, self._total)


def _unpack_file(
    store: Store, blob: Path, kind: Compression, diff_id: DiffId, made_by: str
) -> Layer:
    with blob.open("rb") as file:
        return keep_layer(store, decompressed(kind, file), diff_id, made_by)


def keep_layer(store: Store, stream: Readable, diff_id: DiffId, made_by: str) -> Layer:
    """Unpack a layer's uncompressed tar into the store, if its digest is ``diff_id``.

    Raises :class:`ChecksumError` where it is another's.
    """
    with store.staging() as place:
        tree = place / "tree"
        tree.mkdir()
        # Whatever our umask: the root of a layer may become that of a container.
        os.chmod(tree, 0o755)
        extracted = extract_with_recipe(stream, tree)
        summary, recipe = extracted.summary, extracted.recipe
        if summary.diff_id != diff_id:
            raise ChecksumError(f"a layer is {summary.diff_id}, but its image says {diff_id}")
        if recipe is None:
            raise OutsideError(
                f"the layer {diff_id} is too odd a tar to be written again from its files",
                hint="please report which image that is",
            )
        return store.commit_layer(tree, summary, created_by=made_by, normalise=recipe)


async def push(
    name: str,
    image: Image,
    source: LayerSource,
    *,
    config: Configuration,
    scratch: Path,
    kind: Compression = "zstd",
    transfer: Callable[[int, int], None] | None = None,
) -> Digest:
    """Push ``image`` to the reference ``name``; gives its manifest's digest.

    Only what the registry lacks is made and sent. ``scratch`` is a directory for blobs in the
    making.
    """
    from danlu.oci.registry import Registry, push_image

    named = Reference.parse(name)
    async with Registry(_endpoint(named.registry, config)) as registry:
        pushed = await push_image(
            registry,
            named.repository,
            image,
            source,
            scratch=scratch,
            tags=[named.tag] if named.tag else [],
            kind=kind,
            progress=transfer,
        )
    if named.digest and named.digest != pushed.digest:
        raise OutsideError(f"{named.familiar} was pushed as {pushed.digest}")
    return pushed.digest


async def _asking(
    named: Reference, config: Configuration, job: Callable[[Registry], Awaitable[_T]]
) -> _T:
    """Do ``job`` with the mirror that the user has set for the registry, else with that itself."""
    from danlu.oci.registry import Registry
    from danlu.util.retry import Backoff

    access = config.registries.get(named.registry)
    if access is not None and access.mirror:
        try:
            async with Registry(_mirror(access.mirror, config), backoff=Backoff(2)) as registry:
                return await job(registry)
        except ChecksumError:
            raise
        except OutsideError:
            pass
    async with Registry(_endpoint(named.registry, config)) as registry:
        return await job(registry)


def _endpoint(host: str, config: Configuration, prefix: str = "") -> Endpoint:
    from danlu.oci.registry import Endpoint

    access = config.registries.get(host)
    if access is None:
        return Endpoint(host, prefix=prefix)
    return Endpoint(host, insecure=access.insecure, ca=access.ca, prefix=prefix)


def _mirror(text: str, config: Configuration) -> Endpoint:
    """``HOST[:PORT][/PREFIX]``, with a scheme or without."""
    bare = text.removeprefix("https://").removeprefix("http://").strip("/")
    host, _, prefix = bare.partition("/")
    return _endpoint(host, config, prefix)
