"""Images of registries: resolve references to digests, pull into the store, and push."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import msgspec

from danlu.errors import ChecksumError, OutsideError, TemporaryError
from danlu.graph.ops import Platform
from danlu.oci.blob_export import LayerSource
from danlu.oci.compress import Compression
from danlu.oci.digest import Digest, parse_digest
from danlu.oci.image import Image, select_platform
from danlu.oci.layer_status import LayerStatus, LayerTotals
from danlu.oci.reference import Reference
from danlu.oci.types import Index, Manifest, ParsedDocument
from danlu.sandbox.emulation import host_platform
from danlu.sources.layer_download import LayerDownloader
from danlu.store import Layer, Store
from danlu.util.config import Configuration
from danlu.util.retry import RetryPolicy
from danlu.util.tasks import run_concurrently

# danlu.oci.registry loads aiohttp, which takes longer than everything else here. It is imported
# where a registry is contacted: an image that is already in the store needs none.
if TYPE_CHECKING:
    from danlu.oci.registry import BlobLocations, Registry, RegistryEndpoint

_T = TypeVar("_T")
#: Called with each change of a layer.
LayerReport = Callable[[LayerStatus], None]
#: Called with each failure that is retried, and the seconds until then.
RetryReport = Callable[[TemporaryError, float], None]

#: For the transfer of a blob: long enough for a network that comes back within a minute.
_TRANSFER_BACKOFF = RetryPolicy(attempts=10, max_delay=16.0, deadline=300.0)

#: Layers downloaded at the same time; Docker's default, too.
_MAX_CONCURRENT_LAYERS = 3

#: Limit for indexes that refer to indexes, which could be a loop.
_MAX_INDEXES = 3


class ResolvedImage(msgspec.Struct, frozen=True):
    """The digest of a manifest, and the labels of its image."""

    digest: Digest
    labels: Mapping[str, str]


class PulledImage(msgspec.Struct, frozen=True):
    """An image in the store: its layers, lowest first, and its config exactly as received."""

    layers: tuple[Layer, ...]
    config: bytes


async def resolve_reference(
    reference: str,
    platform: Platform,
    *,
    config: Configuration,
    offline: bool = False,
    on_retry: RetryReport | None = None,
) -> Digest:
    """Return the digest of the manifest that ``reference`` currently has for ``platform``.

    Raises :class:`OutsideError` if there is none, or with ``offline``.
    """
    resolved = await resolve_image(
        reference, platform, config=config, offline=offline, on_retry=on_retry
    )
    return resolved.digest


async def resolve_image(
    reference: str,
    platform: Platform,
    *,
    config: Configuration,
    offline: bool = False,
    on_retry: RetryReport | None = None,
) -> ResolvedImage:
    """Return what :func:`resolve_reference` returns, with the labels of the image."""
    named = Reference.parse(reference)
    if offline:
        raise OutsideError(
            f"cannot resolve image {named.familiar_name} with --offline",
            hint="build from a lockfile that contains it, or without --offline",
        )

    async def ask(registry: Registry) -> ResolvedImage:
        manifest = await _fetch_manifest(registry, named, named.target, platform)
        image = await registry.get_image(named.repository, manifest.value)
        made_for = Platform(image.parsed.os, image.parsed.architecture)
        # A reference to a plain manifest has one platform, which may not be the wanted one.
        if (made_for.os, made_for.architecture) != (platform.os, platform.architecture):
            raise OutsideError(
                f"{named.familiar_name} does not support {platform}",
                hint=f"it is for {made_for}",
            )
        run = image.parsed.config
        return ResolvedImage(manifest.digest, (run.labels if run else None) or {})

    return await _try_mirror_first(named, config, ask, on_retry)


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
    on_layer: LayerReport | None = None,
    on_retry: RetryReport | None = None,
) -> PulledImage:
    """Pull the image ``digest`` from the repository of ``reference`` into the store.

    ``digest`` is the config digest of an image in the store (see :func:`find_local_digest`), or the
    digest of a manifest, or of an index from which the manifest for ``platform``
    (default: this machine's) is selected. Only missing layers are downloaded. All bytes are
    verified twice: against their digests before they are unpacked, and against the image's diff IDs
    afterwards. An interrupted download is continued by the next one. ``transfer`` is called with
    the bytes downloaded and the total, or ``on_layer`` with each change of a layer. Raises
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
            _pull_layers,
            named=named,
            platform=wanted,
            key=key,
            store=store,
            report=on_layer or _report_totals(transfer),
        )
        try:
            return await _try_mirror_first(named, config, fetch, on_retry)
        except OutsideError as error:
            # The lock may be that of a machine whose store has the image.
            name = msgspec.structs.replace(named, digest=None).familiar_name
            raise_with_local_hint(error, name)


def raise_with_local_hint(error: OutsideError, name: str) -> NoReturn:
    """Raise the error of a registry that lacks an image, with a hint how to build it locally."""
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
    report: LayerReport,
) -> PulledImage:
    manifest = await _fetch_manifest(registry, named, named.target, platform)
    image = await registry.get_image(named.repository, manifest.value)
    fetch = LayerDownloader(registry, named, store, report)
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


def _report_totals(transfer: Callable[[int, int], None] | None) -> LayerReport:
    totals = LayerTotals()

    def report(status: LayerStatus) -> None:
        totals.update(status)
        if transfer is not None:
            transfer(*totals.sums)

    return report


async def push(
    name: str,
    image: Image,
    source: LayerSource,
    *,
    others: Sequence[Image] = (),
    config: Configuration,
    scratch: Path,
    kind: Compression = "zstd",
    locations: BlobLocations | None = None,
    create_repository: bool = False,
    on_layer: LayerReport | None = None,
    on_retry: RetryReport | None = None,
) -> Digest:
    """Push ``image`` to the reference ``name``; return the digest of its manifest.

    With ``others``, the same image for other platforms, that of an index of all of them.
    Only what the registry lacks is compressed and uploaded, after trying to mount it from another
    repository of ``locations``. ``scratch`` is a directory for temporary blobs. With
    ``create_repository``, or that setting of the registry, a repository that does not exist is
    created if the registry's cloud requires that and danlu can do it. ``on_layer`` is
    called with each change of a layer, ``on_retry`` with each failure that is retried.
    """
    from danlu.oci.registry import prepare_repository, push_image, push_index

    named = Reference.parse(name)
    endpoint = make_endpoint(named.registry, config)
    access = config.registries.get(named.registry)
    create = create_repository or (access is not None and access.create_repository)
    async with _connect(endpoint, named, on_retry=on_retry, push=True) as registry:
        await prepare_repository(registry, named.repository, create=create)
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
            locations=locations,
            report=on_layer,
        )
    if named.digest and named.digest != pushed.digest:
        raise OutsideError(f"{named.familiar_name} was pushed with another digest: {pushed.digest}")
    return pushed.digest


async def _try_mirror_first(
    named: Reference,
    config: Configuration,
    job: Callable[[Registry], Awaitable[_T]],
    on_retry: RetryReport | None = None,
) -> _T:
    """Run ``job`` on the user's mirror of the registry, falling back to the registry itself."""
    access = config.registries.get(named.registry)
    if access is not None and access.mirror:
        try:
            mirror = _mirror_endpoint(access.mirror, config)
            async with _connect(mirror, named, backoff=RetryPolicy(2)) as registry:
                return await job(registry)
        except ChecksumError:
            raise  # a mirror that serves modified data must not go unnoticed
        except OutsideError:
            pass
    endpoint = make_endpoint(named.registry, config)
    async with _connect(endpoint, named, on_retry=on_retry) as registry:
        return await job(registry)


def _connect(
    endpoint: RegistryEndpoint,
    named: Reference,
    *,
    backoff: RetryPolicy = RetryPolicy(),
    on_retry: RetryReport | None = None,
    push: bool = False,
) -> Registry:
    """Return the client of a registry with the user's credentials for a repository."""
    from danlu.oci.registry import Registry, find_docker_credentials

    path = f"{endpoint.prefix}/{named.repository}".strip("/")
    return Registry(
        endpoint,
        lookup=partial(find_docker_credentials, repository=path, push=push),
        backoff=backoff,
        transfer_backoff=_TRANSFER_BACKOFF,
        on_retry=on_retry,
    )


def make_endpoint(host: str, config: Configuration, prefix: str = "") -> RegistryEndpoint:
    """Return the registry ``host`` with its settings in ``config.toml``."""
    from danlu.oci.registry import RegistryEndpoint

    access = config.registries.get(host)
    if access is None:
        return RegistryEndpoint(host, prefix=prefix)
    return RegistryEndpoint(host, insecure=access.insecure, ca=access.ca, prefix=prefix)


def _mirror_endpoint(text: str, config: Configuration) -> RegistryEndpoint:
    """Parse ``HOST[:PORT][/PREFIX]``, with or without a scheme."""
    bare = text.removeprefix("https://").removeprefix("http://").strip("/")
    host, _, prefix = bare.partition("/")
    return make_endpoint(host, config, prefix)
