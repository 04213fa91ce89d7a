"""Run a command in a container of the project's environment."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from danlu.engine.container_options import (
    parse_security,
    parse_shm_size,
    parse_variable,
    parse_volume,
    select_mounts,
)
from danlu.engine.gpu_options import decide_gpus
from danlu.engine.runtime_mounts import resolve_mounts
from danlu.environment.runtime_settings import RuntimeSettings
from danlu.environments.named_commands import has_program, resolve_command, suggest_command
from danlu.errors import StoreError
from danlu.graph.progress import Message
from danlu.project.driver_check import check_driver
from danlu.project.project import Project
from danlu.project.project_environment import find_named_image, find_project_environment
from danlu.sandbox import userns
from danlu.sandbox.emulation import is_foreign_image, read_image_platform, require_emulation
from danlu.sandbox.launcher.container import ContainerLauncher
from danlu.sandbox.launcher.image_root import open_image
from danlu.sandbox.types import SYSTEM_PATH, ContainerEdits
from danlu.store import Store

if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.graph.progress import Progress

#: The exit code of a shell for a program that does not exist.
_NOT_FOUND = 127


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
    is_program: bool = False,
    shm_size: str = "",
    skip_init: bool = False,
    allow_mounts: bool = False,
) -> int:
    """Run ``args`` in the environment, which is built if needed; return the command's exit code.

    The first of ``args`` may be a command that the build file names.

    Args:
        target: A project, or a directory to mount if ``image`` names a local image.
        volumes: ``SRC:DST[:ro]``.
        environment: ``K=V``, or ``K`` for this process's value.
        gpus: ``all``, ``none``, a number of GPUs, or their indexes and UUIDs.
        security: ``seccomp=PROFILE``.
        is_program: Whether ``args`` is a program even if the build file names such a command.
        shm_size: The size of ``/dev/shm``, instead of the build file's.
        skip_init: Whether to leave out ``runtime.init``.
        allow_mounts: Whether included repositories may mount files of this machine.

    The project is mounted read-write, and the command starts there. Raises
    :class:`~danlu.errors.DanluError` if the command could not be started.
    """
    uid = os.getuid()  # before a build or the container enters a user namespace
    binds = tuple(parse_volume(text) for text in volumes)
    variables = dict(parse_variable(text) for text in environment)
    seccomp = parse_security(security) or settings.config.seccomp
    shm_bytes = parse_shm_size(shm_size) if shm_size else 0
    if isinstance(target, Path):
        stored, runtime, directory = find_named_image(image, settings), RuntimeSettings(), target
    else:
        stored, runtime = find_project_environment(
            target, settings, progress, offline=offline, frozen=frozen
        )
        directory = target.directory
        report_skipped_settings(runtime, progress)
    chosen_gpus = decide_gpus(gpus, runtime, settings.config, progress)
    if isinstance(target, Project):
        required = bool(gpus and chosen_gpus)
        check_driver(target, progress, required=required, config=settings.config)
    declared = resolve_mounts(
        select_mounts(runtime.mounts, binds),
        directory,
        settings.paths,
        allow_included=allow_mounts,
    )
    if is_foreign_image(stored.config):
        require_emulation(read_image_platform(stored.config), " ".join(args[:1]) or "the image")
    userns.enter(settings.paths)
    from danlu.engine.embedded import image_command  # after a build, not before

    with Store.open(settings.paths.store) as store, store.lease(), store.staging() as work:
        stack = store.layers(stored.layers)
        if stack is None:
            raise StoreError(
                "layers of the image are missing from the store", hint="run `danlu build` again"
            )
        trees = tuple(layer.tree for layer in stack)
        root = open_image(store, stored, stack)
        image_variables = dict(root.config.environment)
        edits: AbstractContextManager[ContainerEdits] = nullcontext(ContainerEdits())
        if chosen_gpus:
            from danlu.engine.gpu.allocation import hold_gpus

            edits = hold_gpus(
                chosen_gpus,
                trees,
                settings.config,
                work=work,
                uid=uid,
                share=not gpus,
                variables={**image_variables, **variables},
                progress=progress,
            )
        with edits as gpu_edits:
            command = image_command.ImageCommand(
                args if is_program else resolve_command(args, runtime),
                project=directory,
                volumes=(*declared, *binds),
                environment=variables,
                user=user,
                terminal=terminal,
                edits=gpu_edits,
                init=() if skip_init else runtime.init,
                shm_size=shm_bytes or (runtime.shm_size or 0) << 20,
            )
            launcher = ContainerLauncher(work, runtime=settings.config.runtime, seccomp=seccomp)
            code = image_command.run_command(root, command, launcher)
    if code == _NOT_FOUND and args and not is_program:
        search_path = variables.get("PATH", image_variables.get("PATH", SYSTEM_PATH))
        hint = suggest_command(args[0], runtime)
        if hint and not has_program(trees, args[0], search_path):
            progress(Message(f"hint: {hint}", 0.0))
    return code


def report_skipped_settings(runtime: RuntimeSettings, progress: Progress) -> None:
    """Print a hint with the settings of the build file that ``danlu run`` ignores."""
    skipped = [
        name
        for name, wanted in (
            ("config.jupyter", runtime.jupyter),
            ("runtime.daemon", runtime.daemons),
            ("runtime.expose", runtime.ports),
        )
        if wanted
    ]
    if skipped:
        names = ", ".join(skipped)
        progress(Message(f"note: `danlu run` does not apply {names}; use `danlu up`", 0.0))
