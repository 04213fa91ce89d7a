"""Run a command in a container of the project's environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from danlu.builder.embedded.bytecode_layers import find_bytecode_trees
from danlu.commands.build_cache import lookup
from danlu.commands.driver_check import check_driver
from danlu.errors import StoreError, UsageError
from danlu.graph.image_config import parse_image_config
from danlu.sandbox import userns
from danlu.sandbox.emulation import is_foreign_image, read_image_platform, require_emulation
from danlu.sandbox.types import Mount
from danlu.store import Store

if TYPE_CHECKING:
    from danlu.commands.project import Project
    from danlu.commands.settings import Settings
    from danlu.graph.progress import Progress
    from danlu.store import StoredImage


def run_command(
    target: Project | Path,
    *,
    settings: Settings,
    args: tuple[str, ...],
    progress: Progress,
    image: str = "",
    volumes: tuple[str, ...] = (),
    environment: tuple[str, ...] = (),
    gpus: str = "",
    user: str = "",
    security: tuple[str, ...] = (),
    terminal: bool = False,
    offline: bool = False,
    frozen: bool = False,
) -> int:
    """Run ``args`` in the environment, which is built if needed; return the command's exit code.

    Args:
        target: A project, or a directory to mount if ``image`` names a local image.
        volumes: ``SRC:DST[:ro]``.
        environment: ``K=V``, or ``K`` for this process's value.
        security: ``seccomp=PROFILE``.

    The project is mounted read-write, and the command starts there. Raises
    :class:`~danlu.errors.DanluError` if the command could not be started.
    """
    binds = tuple(parse_volume(text) for text in volumes)
    variables = dict(_parse_variable(text) for text in environment)
    seccomp = parse_security(security) or settings.config.seccomp
    if isinstance(target, Path):
        stored, directory = find_named_image(image, settings), target
    else:
        stored = find_project_image(target, settings, progress, offline=offline, frozen=frozen)
        check_driver(target, progress, required=bool(gpus))
        directory = target.directory
    if is_foreign_image(stored.config):
        require_emulation(read_image_platform(stored.config), " ".join(args[:1]) or "the image")
    userns.enter(settings.paths)
    from danlu.engine.embedded import run_command as run_here  # after a build, not before

    with Store.open(settings.paths.store) as store, store.lease(), store.staging() as work:
        stack = store.layers(stored.layers)
        if stack is None:
            raise StoreError(
                "layers of the image are missing from the store", hint="run `danlu build` again"
            )
        trees = tuple(layer.tree for layer in stack)
        return run_here(
            (*trees, *find_bytecode_trees(store, stored, stack)),
            parse_image_config(stored.config),
            args=args,
            project=directory,
            volumes=binds,
            environment=variables,
            user=user,
            terminal=terminal,
            gpus=gpus,
            work=work,
            runtime_name=settings.config.runtime,
            seccomp=seccomp,
        )


def find_named_image(image: str, settings: Settings) -> StoredImage:
    """Return the image of the store that ``image`` names."""
    from danlu.commands.image.manage import find_image  # few runs name an image

    with Store.open(settings.paths.store) as store:
        return find_image(store, image)


def find_project_image(
    project: Project, settings: Settings, progress: Progress, *, offline: bool, frozen: bool
) -> StoredImage:
    """Return the project's image; build it if needed."""
    with Store.open(settings.paths.store) as store:
        image = lookup(store, project)
    if image is not None:
        return image
    # A project that has not changed starts without loading the builder.
    from danlu.commands.build import BuildOptions, find_or_build_image

    options = BuildOptions(offline=offline, frozen=frozen)
    return find_or_build_image(project, settings=settings, options=options, progress=progress)


def parse_volume(text: str) -> Mount:
    """Parse ``SRC:DST[:ro|:rw]``.

    Raises :class:`UsageError` if it is invalid or the source does not exist.
    """
    parts = text.split(":")
    mode = parts.pop() if len(parts) == 3 else "rw"
    if len(parts) != 2 or mode not in ("ro", "rw") or not parts[1].startswith("/"):
        raise UsageError(f"invalid volume {text!r}", hint="use SRC:/DST or SRC:/DST:ro")
    source = Path(parts[0]).expanduser().absolute()
    if not source.exists():
        raise UsageError(f"cannot mount {source}: no such file or directory")
    return Mount(parts[1], source, readonly=mode == "ro")


def parse_security(texts: Sequence[str]) -> str:
    """Parse ``seccomp=PROFILE`` options; the last one wins.

    Returns ``default``, ``unconfined`` or the absolute path of a profile. Raises
    :class:`UsageError` for any other option.
    """
    profile = ""
    for text in texts:
        name, _, value = text.partition("=")
        if name != "seccomp" or not value:
            raise UsageError(
                f"invalid security option {text!r}",
                hint="use seccomp=unconfined, seccomp=default or seccomp=PROFILE.json",
            )
        known = value in ("default", "unconfined")
        profile = value if known else str(Path(value).expanduser().absolute())
    return profile


def _parse_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name:
        raise UsageError(f"invalid variable {text!r}", hint="use NAME=VALUE or NAME")
    return name, value if equals else os.environ.get(name, "")
