"""``danlu run``: one command in the project's environment, then nothing is left of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from danlu.builder.embedded.bytecode import bytecode_trees
from danlu.commands.known import find
from danlu.errors import StoreError, UsageError
from danlu.graph.imageconfig import image_config_of
from danlu.sandbox.types import Mount

if TYPE_CHECKING:
    from danlu.commands.project import Project
    from danlu.commands.settings import Settings
    from danlu.graph import Progress
    from danlu.store import StoredImage

__all__ = ["parse_volume", "run"]


def run(
    place: Project | Path,
    *,
    settings: Settings,
    args: tuple[str, ...],
    progress: Progress,
    image: str = "",
    volumes: tuple[str, ...] = (),
    environment: tuple[str, ...] = (),
    gpus: str = "",
    user: str = "",
    terminal: bool = False,
    offline: bool = False,
    frozen: bool = False,
) -> int:
    """Run ``args`` in the environment, built first where it is not; gives the program's code.

    ``place`` is a project, or a directory and then ``image`` names an image of the store. The
    directory is mounted read-write where the program starts; ``volumes`` are ``SRC:DST[:ro]``,
    ``environment`` is ``K=V`` or ``K`` (this process's value). Raises
    :class:`~danlu.errors.DanluError` where the program could not be started.
    """
    from danlu.sandbox import userns
    from danlu.store import Store

    binds = tuple(parse_volume(text) for text in volumes)
    variables = dict(_variable(text) for text in environment)
    if isinstance(place, Path):
        found, directory = _named(image, settings), place
    else:
        found = _of(place, settings, progress, offline=offline, frozen=frozen)
        directory = place.directory
    userns.enter(settings.paths)
    from danlu.engine.embedded import run as run_here

    with Store.open(settings.paths.store) as store, store.lease(), store.staging() as work:
        stack = store.layers(found.layers)
        if stack is None:
            raise StoreError(
                "layers of the image are gone from the store", hint="run `danlu build` again"
            )
        trees = tuple(layer.tree for layer in stack)
        return run_here(
            (*trees, *bytecode_trees(store, found, stack)),
            image_config_of(found.config),
            args=args,
            project=directory,
            volumes=binds,
            environment=variables,
            user=user,
            terminal=terminal,
            gpus=gpus,
            work=work,
            runtime_name=settings.config.runtime,
        )


def _named(image: str, settings: Settings) -> StoredImage:
    from danlu.commands.images import find_image
    from danlu.store import Store

    with Store.open(settings.paths.store) as store:
        return find_image(store, image)


def _of(
    project: Project, settings: Settings, progress: Progress, *, offline: bool, frozen: bool
) -> StoredImage:
    """The project's image, built where it is not there."""
    from danlu.store import Store

    with Store.open(settings.paths.store) as store:
        image = find(store, project)
    if image is not None:
        return image
    # A start of what is known waits for none of this to be imported.
    from danlu.commands.build import BuildOptions, image_of

    options = BuildOptions(offline=offline, frozen=frozen)
    return image_of(project, settings=settings, options=options, progress=progress)


def parse_volume(text: str) -> Mount:
    """``SRC:DST[:ro|:rw]`` as a mount.

    Raises :class:`UsageError` where it is not of that form or the source is not there.
    """
    words = text.split(":")
    mode = words.pop() if len(words) == 3 else "rw"
    if len(words) != 2 or mode not in ("ro", "rw") or not words[1].startswith("/"):
        hint = "volumes look like SRC:/DST or SRC:/DST:ro"
        raise UsageError(f"{text!r} is not a volume", hint=hint)
    source = Path(words[0]).expanduser().absolute()
    if not source.exists():
        raise UsageError(f"there is no {source} to mount")
    return Mount(words[1], source, readonly=mode == "ro")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name:
        raise UsageError(f"{text!r} is not a variable", hint="variables look like NAME=VALUE")
    return name, value if equals else os.environ.get(name, "")
