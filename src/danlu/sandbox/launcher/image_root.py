"""An image of the store as the root of containers, and its programs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from danlu.errors import StoreError
from danlu.graph.image_config import ImageConfig, parse_image_config
from danlu.sandbox import users
from danlu.sandbox.launcher.bytecode_layers import add_bytecode_trees
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.processor import describe_image, require_processor
from danlu.sandbox.types import SYSTEM_PATH, ContainerEdits, ProcessSpec
from danlu.store import Layer, Store, StoredImage


class ImageRoot(msgspec.Struct, frozen=True):
    """The unpacked layers of an image, lowest first, and what its config says about programs.

    ``is_built_here`` allows them this machine's settings of pip and uv
    (:attr:`danlu.store.StoredImage.is_built_here`).
    """

    trees: tuple[Path, ...]
    config: ImageConfig = ImageConfig()
    is_built_here: bool = False


def find_layers(store: Store, image: StoredImage) -> list[Layer]:
    """Return the image's layers; raise :class:`StoreError` if any is missing."""
    layers = store.layers(image.layers)
    if layers is None:
        raise StoreError("layers of the image are missing from the store", hint="build it again")
    return layers


def open_image(
    store: Store, image: StoredImage, layers: Sequence[Layer], upper: Path | None = None
) -> ImageRoot:
    """Return an image with these layers as a root, together with the bytecode that is ready.

    ``upper`` is the writable directory that will lie over them, if it may have files already.
    Raises :class:`~danlu.errors.MachineError` if this machine cannot run the image's programs.
    """
    require_processor(image.config, describe_image(image))
    trees = add_bytecode_trees(store, image, layers, upper)
    return ImageRoot(trees, parse_image_config(image.config), image.is_built_here)


def image_process(
    view: LayerView,
    config: ImageConfig,
    command: tuple[str, ...],
    *,
    directory: str = "",
    environment: Mapping[str, str],
    defaults: Mapping[str, str] | None = None,
    edits: ContainerEdits | None = None,
    user: str = "",
    terminal: bool = False,
) -> ProcessSpec:
    """Return ``command`` as a process of an image, with the image's directory and user as defaults.

    Its variables are ``defaults``, then the image's, those of ``edits`` and ``environment``; later
    ones win. The groups of ``edits`` are added to those that the user has in the image. Raises
    :class:`UsageError` for a user that the image does not have.
    """
    resolved = users.find_user(view, user or config.user)
    edits = edits or ContainerEdits()
    return ProcessSpec(
        command,
        {
            "PATH": SYSTEM_PATH,
            "HOME": resolved.home,
            **({"TERM": os.environ.get("TERM", "xterm")} if terminal else {}),
            **(defaults or {}),
            **dict(config.environment),
            **edits.environment,
            **environment,
        },
        working_directory=directory or config.working_directory or "/",
        uid=resolved.uid,
        gid=resolved.gid,
        groups=tuple(dict.fromkeys((*resolved.groups, *edits.groups))),
        terminal=terminal,
    )
