"""``danlu image``: the images of this machine's store, looked at, named and removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.errors import UsageError

if TYPE_CHECKING:
    from danlu.oci.types import Config
    from danlu.store import Store, StoredImage

__all__ = [
    "ImageLayer",
    "Removed",
    "find_image",
    "image_names",
    "layers_of",
    "normal_name",
    "parsed_config",
    "remove",
    "summary_fields",
    "tag",
]


class ImageLayer(msgspec.Struct, frozen=True):
    """One layer of an image: diff id, bytes of its uncompressed tar (-1 where it is gone)."""

    diff_id: str
    size: int
    created_by: str


class Removed(msgspec.Struct, frozen=True):
    """What ``rm`` did: the names it took away, the images (config digests) it removed."""

    names: tuple[str, ...]
    images: tuple[str, ...]


def normal_name(text: str) -> str:
    """A name as images are listed under it: ``demo`` is ``demo:latest``.

    Raises :class:`UsageError` for what is no reference, or pins a digest.
    """
    from danlu.oci.reference import Reference

    reference = Reference.parse(text)
    if reference.digest:
        raise UsageError(f"{text!r} names a digest; a name for an image has a tag instead")
    return reference.familiar


def image_names(store: Store) -> list[str]:
    """All names, sorted, for completion and suggestions."""
    return sorted(name for image in store.images() for name in image.names)


def find_image(store: Store, text: str) -> StoredImage:
    """The image that ``text`` names: a name, a config digest, or the beginning of one.

    Raises :class:`UsageError` with the nearest name where there is none.
    """
    for candidate in _spellings(text):
        found = store.image(candidate)
        if found is not None:
            return found
    from difflib import get_close_matches

    names = image_names(store)
    near = get_close_matches(text, names, 1) or get_close_matches(f"{text}:latest", names, 1)
    hint = f"did you mean {near[0]}?" if near else "`danlu image ls` lists what there is"
    raise UsageError(f"there is no image {text} here", hint=hint)


def _spellings(text: str) -> Iterator[str]:
    yield text
    try:
        yield normal_name(text)
    except UsageError:
        return


def parsed_config(image: StoredImage) -> Config:
    """The image's configuration."""
    from danlu.oci.types import parse_config

    return parse_config(image.config).value


def layers_of(store: Store, image: StoredImage) -> tuple[ImageLayer, ...]:
    """The layers, lowest first, with how each came to be."""
    from danlu.oci.image import read_image

    made = read_image(image.config).created_by
    found = []
    for diff_id, created_by in zip(image.layers, made, strict=False):
        layer = store.layer(diff_id)
        size = layer.size if layer else -1
        found.append(ImageLayer(diff_id, size, created_by or (layer.created_by if layer else "")))
    return tuple(found)


def tag(store: Store, text: str, name: str) -> str:
    """Give the image ``text`` the further name ``name``; gives the name in its normal form."""
    normal = normal_name(name)
    store.tag(normal, find_image(store, text).digest)
    return normal


def remove(store: Store, texts: Sequence[str]) -> Removed:
    """Remove names, and images whose last name went or that were named by digest.

    Nothing is removed where one of ``texts`` names no image (:class:`UsageError`).
    """
    found = [(text, find_image(store, text)) for text in texts]
    names: list[str] = []
    images: list[str] = []
    for text, image in found:
        name = next((one for one in _spellings(text) if one in image.names), None)
        left = set(image.names) - set(names)
        if name is not None and left - {name}:
            store.untag(name)
            names.append(name)
        elif image.digest not in images:
            store.remove_image(image.digest)
            names += sorted(left)
            images.append(image.digest)
    return Removed(tuple(names), tuple(images))


def summary_fields(store: Store, image: StoredImage) -> dict[str, Any]:
    """What a list of images says of one."""
    layers = layers_of(store, image)
    return {
        "digest": image.digest,
        "names": list(image.names),
        "source": _source(image),
        "created": round(image.created),
        "used": round(image.used),
        "layers": len(layers),
        "size": sum(max(0, layer.size) for layer in layers),
    }


def _source(image: StoredImage) -> str:
    """Where an image is from: ``build.envd:build``, or the file or registry it was taken from."""
    told = image.metadata
    if told.get("file"):
        return f"{told['file']}:{told.get('function', '')}"
    return str(told.get("pulled") or told.get("loaded") or "")
