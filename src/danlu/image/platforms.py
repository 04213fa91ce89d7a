"""One name for images of several platforms: the first has the name, others ``NAME@PLATFORM``.

No reference looks like ``demo:latest@linux/arm64``, so that such a name is never one that a user
chose. Images that were built together are exported together, as an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from danlu.errors import UsageError
from danlu.oci.reference import Reference
from danlu.sandbox.emulation import is_foreign_image, read_image_platform

if TYPE_CHECKING:
    from danlu.store import Store, StoredImage


def tag_platforms(store: Store, name: str, images: Sequence[StoredImage]) -> None:
    """Give ``name`` to images of different platforms, this machine's first if it is among them."""
    ordered = sort_platforms(images)
    for other in list_platform_names(store, name):
        store.untag(other)
    store.tag(name, ordered[0].digest)
    for image in ordered[1:]:
        store.tag(f"{name}@{read_image_platform(image.config)}", image.digest)


def sort_platforms(images: Sequence[StoredImage]) -> list[StoredImage]:
    """Return the images with this machine's first; the others keep their order."""
    return sorted(images, key=lambda image: is_foreign_image(image.config))


def list_platform_names(store: Store, text: str) -> list[str]:
    """Return the names of the images that the name ``text`` has for further platforms, sorted."""
    if "@" in text:
        return []
    try:
        name = Reference.parse(text).familiar_name
    except UsageError:
        return []
    names = (name for image in store.images() for name in image.names)
    return sorted(other for other in names if other.startswith(f"{name}@"))


def find_other_platforms(store: Store, text: str) -> tuple[StoredImage, ...]:
    """Return the images that the name ``text`` has for further platforms."""
    found = map(store.image, list_platform_names(store, text))
    return tuple(image for image in found if image is not None)
