"""Byte code for a start: which layers of it fit an image (D4).

Making it is :mod:`danlu.builder.embedded.ops.bytecode`, which a start does not import.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from danlu.store import Layer, Store, StoredImage

__all__ = ["bytecode_key", "bytecode_trees", "wheels_as_they_were", "wheels_of"]


def bytecode_trees(store: Store, image: StoredImage, stack: Sequence[Layer]) -> tuple[Path, ...]:
    """Trees to lay over the image's own: the byte code that there is for its wheels."""
    record = store.record(bytecode_key(image))
    known = store.layers(record["layers"]) if record is not None else None
    if known is None:
        known = _known_one_by_one(store, image, stack)
    return tuple(layer.tree for layer in known)


def bytecode_key(image: StoredImage) -> str:
    """Under what all the byte code of an image is recorded, once it is made."""
    return f"bytecode-of:{image.digest}"


def _known_one_by_one(store: Store, image: StoredImage, stack: Sequence[Layer]) -> list[Layer]:
    wheels = wheels_of(image, stack)
    if not wheels:
        return []
    from danlu.builder.embedded.interpreter import find_interpreter, known_layers

    interpreter = find_interpreter(store, stack, str(image.metadata["python"]))
    return known_layers(store, wheels, interpreter.key)


def wheels_of(image: StoredImage, stack: Sequence[Layer]) -> list[Layer]:
    """The layers of an image that are wheels of its own Python, as they were installed."""
    if not all(name in image.metadata for name in ("prefix", "site_packages", "python")):
        return []
    prefix, site_packages = (str(image.metadata[name]) for name in ("prefix", "site_packages"))
    return wheels_as_they_were(stack, f"{prefix.strip('/')}/{site_packages}")


def wheels_as_they_were(stack: Sequence[Layer], site: str) -> list[Layer]:
    """The layers of wheels that no later layer touches; ``site`` is where they are installed.

    Byte code of the unchecked kind would hide a source that a step changed: where a later layer
    has an entry of a wheel's name, the wheel is compiled by whoever imports it.
    """
    names = [_names(layer.tree / site) for layer in stack]
    found = []
    later: set[str] = set()
    for layer, own in zip(reversed(stack), reversed(names), strict=True):
        if own and any(name.endswith(".dist-info") for name in own) and not own & later:
            found.append(layer)
        elif own:
            later |= own
    return found[::-1]


def _names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return set()
