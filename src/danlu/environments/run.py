"""Run a command in a container of the project's environment."""

from __future__ import annotations

import os
from contextlib import ExitStack
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
from danlu.engine.registry import find_environment_engine
from danlu.engine.runtime_mounts import resolve_mounts
from danlu.environment.runtime_settings import RuntimeSettings
from danlu.environments.command_options import CommandOptions, report_skipped_settings
from danlu.environments.named_commands import has_program, resolve_command, suggest_command
from danlu.errors import UsageError
from danlu.graph.progress import Message
from danlu.project.driver_check import check_driver, check_image_driver
from danlu.project.project import Project
from danlu.project.project_environment import find_named_image, find_project_environment
from danlu.sandbox import userns
from danlu.sandbox.launcher.container import ContainerLauncher
from danlu.sandbox.launcher.image_root import find_layers, open_image
from danlu.sandbox.processor import require_processor
from danlu.sandbox.types import SYSTEM_PATH, ContainerEdits
from danlu.store import Store

if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.graph.progress import Progress

#: The exit code of a shell for a program that does not exist.
_NOT_FOUND = 127


def run_command(
    target: Project | Path,
    args: tuple[str, ...],
    options: CommandOptions,
    *,
    settings: Settings,
    progress: Progress,
) -> int:
    """Run ``args`` in the environment, which is built if needed; return the command's exit code.

    ``target`` is a project, or a directory to mount if ``options`` name an image. It is mounted
    read-write, and the command starts there. The first of ``args`` may be a command that the build
    file names. An engine that only has environments gets one that ends with the command. Raises
    :class:`~danlu.errors.DanluError` if the command could not be started.
    """
    if find_environment_engine(settings.engine).features.runs_programs:
        return _run_in_image(target, args, options, settings, progress)
    if options.security:
        raise UsageError("--security-opt needs danlu's own engine", hint="add --on local")
    from danlu.environments.run_once import run_once

    return run_once(target, args, options, settings=settings, progress=progress)


def _run_in_image(
    target: Project | Path,
    args: tuple[str, ...],
    options: CommandOptions,
    settings: Settings,
    progress: Progress,
) -> int:
    uid = os.getuid()  # before a build or the container enters a user namespace
    config = settings.config
    binds = tuple(parse_volume(text) for text in options.volumes)
    variables = dict(parse_variable(text) for text in options.environment)
    seccomp = parse_security(options.security) or config.seccomp
    shm_bytes = parse_shm_size(options.shm_size) if options.shm_size else 0
    if isinstance(target, Path):
        stored, directory = find_named_image(options.image, settings), target
        runtime = RuntimeSettings()
    else:
        stored, runtime = find_project_environment(
            target, settings, progress, offline=options.offline, frozen=options.frozen
        )
        directory = target.directory
        report_skipped_settings(runtime, progress)
    gpus = decide_gpus(options.gpus, runtime, config, progress)
    if isinstance(target, Project):
        check_driver(target, progress, required=bool(options.gpus and gpus), config=config)
    if gpus:
        check_image_driver(stored.config, progress, required=bool(options.gpus), config=config)
    declared = resolve_mounts(
        select_mounts(runtime.mounts, binds),
        directory,
        settings.paths,
        allow_included=options.allow_mounts,
    )
    require_processor(stored.config, " ".join(args[:1]) or "the image")
    userns.enter(settings.paths)
    from danlu.engine.embedded import image_command  # after a build, not before

    with (
        Store.open(settings.paths.store) as store,
        store.lease(),
        store.staging() as work,
        ExitStack() as held,
    ):
        root = open_image(store, stored, find_layers(store, stored))
        defined = {**dict(root.config.environment), **variables}
        edits = ContainerEdits()
        if gpus:
            from danlu.engine.gpu.allocation import hold_gpus

            edits = held.enter_context(
                hold_gpus(
                    gpus,
                    root.trees,
                    config,
                    work=work,
                    uid=uid,
                    share=not options.gpus,
                    variables=defined,
                    progress=progress,
                )
            )
        command = image_command.ImageCommand(
            args if options.is_program else resolve_command(args, runtime),
            project=directory,
            volumes=(*declared, *binds),
            environment=variables,
            user=options.user,
            terminal=options.terminal,
            edits=edits,
            init=() if options.skip_init else runtime.init,
            shm_size=shm_bytes or (runtime.shm_size or 0) << 20,
        )
        launcher = ContainerLauncher(work, runtime=config.runtime, seccomp=seccomp)
        code = image_command.run_command(root, command, launcher)
    if code == _NOT_FOUND and args and not options.is_program:
        hint = suggest_command(args[0], runtime)
        if hint and not has_program(root.trees, args[0], defined.get("PATH", SYSTEM_PATH)):
            progress(Message(f"hint: {hint}", 0.0))
    return code
