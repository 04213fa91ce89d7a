"""Byte code for a start: which layers of it fit an image, and making what is missing (D4)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from danlu.commands.settings import Settings
    from danlu.graph import Scheme
    from danlu.store import Layer, Store, StoredImage

__all__ = ["bytecode_trees", "compile_image", "described", "wheels_as_they_were"]


def described(executable: str, scheme: Scheme) -> dict[str, str]:
    """What an image's metadata keeps of its Python, for :func:`bytecode_trees`."""
    return {
        "python": executable,
        "prefix": scheme.prefix,
        "version": scheme.version,
        "site_packages": scheme.site_packages,
        "interpreter": scheme.interpreter,
    }


def bytecode_trees(store: Store, image: StoredImage, stack: Sequence[Layer]) -> tuple[Path, ...]:
    """Trees to lay over the image's own: the byte code that there is for its wheels."""
    record = store.record(_key(image))
    known = store.layers(record["layers"]) if record is not None else None
    if known is None:
        known = _known_one_by_one(store, image, stack)
    return tuple(layer.tree for layer in known)


def _key(image: StoredImage) -> str:
    """Under what all the byte code of an image is recorded, once it is made."""
    return f"bytecode-of:{image.digest}"


def _known_one_by_one(store: Store, image: StoredImage, stack: Sequence[Layer]) -> list[Layer]:
    wheels = _wheels(image, stack)
    if not wheels:
        return []
    from danlu.builder.embedded.interpreter import find_interpreter, known_layers

    interpreter = find_interpreter(store, stack, str(image.metadata["python"]))
    return known_layers(store, wheels, interpreter.key)


def _wheels(image: StoredImage, stack: Sequence[Layer]) -> list[Layer]:
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


async def compile_image(store: Store, image: StoredImage, settings: Settings) -> None:
    """Make the byte code that the image's wheels lack; nothing where it has no Python of ours."""
    stack = store.layers(image.layers)
    wheels = _wheels(image, stack or ())
    if not stack or not wheels:
        return
    from danlu.builder.embedded.build import run_sync
    from danlu.builder.embedded.context import Context
    from danlu.builder.embedded.interpreter import find_interpreter
    from danlu.builder.embedded.ops.bytecode import compile_layers
    from danlu.sandbox.sandbox import Sandbox

    interpreter = find_interpreter(store, stack, str(image.metadata["python"]))
    with store.staging() as work:
        context = Context(
            store=store,
            paths=settings.paths,
            config=settings.config,
            sandbox=Sandbox(work, name=settings.config.runtime),
            project=work,
            below=tuple(stack),
            inputs=(),
            log=lambda line: None,
            transfer=lambda current, total: None,
            run_sync=run_sync,
            offline=True,
        )
        made = await compile_layers(wheels, interpreter, _scheme(image), context)
    diff_ids = [layer.diff_id for layer in made]
    store.put_record(_key(image), {"layers": diff_ids}, layers=diff_ids)


def _scheme(image: StoredImage) -> Scheme:
    from danlu.graph import Scheme

    fields = ("prefix", "version", "site_packages", "interpreter")
    return Scheme(**{name: str(image.metadata[name]) for name in fields})
