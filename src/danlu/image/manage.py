"""List, find, tag, remove and prune the images of this machine's store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.errors import UsageError
from danlu.image.platforms import (
    find_other_platforms,
    list_platform_names,
    tag_platforms,
)
from danlu.oci.image import parse_image
from danlu.oci.reference import Reference
from danlu.oci.types import Config, parse_config
from danlu.sources import downloads
from danlu.util.suggest import closest_match

if TYPE_CHECKING:
    from danlu.store import Store, StoredImage
    from danlu.util.paths import Paths

#: Downloads get at most one part in this many of a budget that layers could fill alone.
_DOWNLOAD_SHARE = 4


class ImageLayer(msgspec.Struct, frozen=True):
    """A layer of an image; ``size`` is that of its uncompressed tar, -1 if it is missing."""

    diff_id: str
    size: int
    created_by: str


class RemovedImages(msgspec.Struct, frozen=True):
    """The names and the images (config digests) that were removed."""

    names: tuple[str, ...]
    images: tuple[str, ...]


class PruneReport(msgspec.Struct, frozen=True):
    """What was removed, and how many bytes were freed and kept, downloads included.

    ``busy`` says that downloads were kept because a build is using them.
    """

    images: int
    layers: int
    blobs: int
    records: int
    downloads: int
    freed: int
    kept: int
    busy: bool = False


# -- find


def normalize_name(text: str) -> str:
    """Return a name as images are listed: ``demo`` becomes ``demo:latest``.

    Raises :class:`UsageError` for an invalid reference and for one with a digest.
    """
    reference = Reference.parse(text)
    if reference.digest:
        raise UsageError(f"the name of an image cannot contain a digest: {text!r}")
    return reference.familiar_name


def list_image_names(store: Store) -> list[str]:
    """Return the names of all images, sorted."""
    return sorted(name for image in store.images() for name in image.names)


def find_image(store: Store, text: str) -> StoredImage:
    """Find an image by its name, its config digest, or the beginning of its digest.

    Raises :class:`UsageError` with the most similar name if there is none.
    """
    for candidate in _candidate_names(text):
        image = store.image(candidate)
        if image is not None:
            return image
    names = list_image_names(store)
    match = closest_match(text, names) or closest_match(f"{text}:latest", names)
    hint = (
        f"did you mean {match}?"
        if match
        else f"run `danlu image pull {text}`, or `danlu image ls` to list local images"
    )
    raise UsageError(f"image {text!r} not found in the local store", hint=hint)


def _candidate_names(text: str) -> Iterator[str]:
    yield text
    try:
        yield normalize_name(text)
    except UsageError:
        return


# -- inspect


def parse_image_config(image: StoredImage) -> Config:
    """Parse the image's configuration."""
    return parse_config(image.config).value


def list_layers(store: Store, image: StoredImage) -> tuple[ImageLayer, ...]:
    """Return the image's layers, the lowest first."""
    layers = []
    history = parse_image(image.config).created_by
    for diff_id, created_by in zip(image.layers, history, strict=False):
        layer = store.layer(diff_id)
        size = layer.size if layer else -1
        layers.append(ImageLayer(diff_id, size, created_by or (layer.created_by if layer else "")))
    return tuple(layers)


def summarize_image(store: Store, image: StoredImage) -> dict[str, Any]:
    """Return what ``danlu image ls --format json`` shows of an image."""
    layers = list_layers(store, image)
    return {
        "digest": image.digest,
        "names": list(image.names),
        "source": _image_source(image),
        "created": round(image.created),
        "used": round(image.used),
        "layers": len(layers),
        "size": sum(max(0, layer.size) for layer in layers),
    }


def _image_source(image: StoredImage) -> str:
    """Return ``build.envd:build``, or the archive or reference that the image came from."""
    metadata = image.metadata
    if metadata.get("file"):
        return f"{metadata['file']}:{metadata.get('function', '')}"
    return str(metadata.get("pulled") or metadata.get("loaded") or "")


# -- change


def tag_image(store: Store, text: str, name: str) -> str:
    """Add a name to the image ``text``; return the name as listed."""
    normalized = normalize_name(name)
    tag_platforms(store, normalized, (find_image(store, text), *find_other_platforms(store, text)))
    return normalized


def remove_images(store: Store, texts: Sequence[str]) -> RemovedImages:
    """Remove names, and images that lose their last name or were given by digest.

    Raises :class:`UsageError` if an image is not found; then nothing is removed.
    """
    found = [(text, find_image(store, text)) for text in texts]
    others = [name for text in texts for name in list_platform_names(store, text)]
    found += [(name, find_image(store, name)) for name in others]
    names: list[str] = []
    images: list[str] = []
    for text, image in found:
        name = next(
            (candidate for candidate in _candidate_names(text) if candidate in image.names), None
        )
        remaining = set(image.names) - set(names)
        if name is not None and remaining - {name}:
            store.untag(name)
            names.append(name)
        elif image.digest not in images:
            store.remove_image(image.digest)
            names += sorted(remaining)
            images.append(image.digest)
    return RemovedImages(tuple(names), tuple(images))


def prune_images(
    store: Store, paths: Paths, keep_bytes: int, *, dry_run: bool = False
) -> PruneReport:
    """Remove what is damaged or left over, then what was used least recently.

    A ``dry_run`` returns what would be removed, apart from what is damaged or left over.
    At most ``keep_bytes`` remain, except for what named images and running builds need. Layers and
    downloads share the budget; downloads are evicted first, except for a quarter of it.
    """
    reserved = min(downloads.cache_size(paths.cache), keep_bytes // _DOWNLOAD_SHARE)
    limit = keep_bytes - reserved
    collected = store.plan_collection(limit) if dry_run else store.collect(limit)
    # Measured after collecting: a download may share its blocks (hard links) with a removed layer.
    rest = max(reserved, keep_bytes - collected.kept)
    pruned = downloads.prune(paths.cache, rest, dry_run=dry_run)
    return PruneReport(
        images=collected.images,
        layers=collected.layers,
        blobs=collected.blobs,
        records=collected.records,
        downloads=pruned.count,
        freed=collected.freed + pruned.freed,
        kept=collected.kept + pruned.kept,
        busy=pruned.busy,
    )
