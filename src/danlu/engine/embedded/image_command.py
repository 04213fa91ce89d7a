"""Run one command in an image on this machine without a daemon, for ``danlu run``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec

from danlu.errors import UsageError
from danlu.sandbox.launcher.container import ContainerLauncher
from danlu.sandbox.launcher.foreground import run_in_foreground
from danlu.sandbox.launcher.image_root import ImageRoot, image_process
from danlu.sandbox.launcher.waiting_shell import render_start_script
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.network_env import detect_network_environment
from danlu.sandbox.prepare import ContainerSpec
from danlu.sandbox.types import PROJECT_DIRECTORY, ContainerEdits, Mount, RootFilesystem


class ImageCommand(msgspec.Struct, frozen=True):
    """A command to run in an image.

    Attributes:
        args: By default the image's command.
        project: Mounted writable at ``/workspace``, the working directory.
        volumes: Targets may start with ``~/``.
        user: A name or number; by default the image's.
        terminal: Whether it gets a terminal connected to ours, instead of our input and output.
        edits: Devices.
        init: Commands of the shell to run before, in the same container: if one fails, stderr names
            it and the exit code is 1.
        shm_size: The bytes of ``/dev/shm``, 0 for the kernel's default.
    """

    args: tuple[str, ...] = ()
    project: Path | None = None
    volumes: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = {}
    user: str = ""
    terminal: bool = False
    edits: ContainerEdits = ContainerEdits()
    init: tuple[str, ...] = ()
    shm_size: int = 0


def run_command(image: ImageRoot, command: ImageCommand, launcher: ContainerLauncher) -> int:
    """Run a command in an image and return its exit code; changes to the root are discarded.

    See :func:`danlu.sandbox.launcher.foreground.run_in_foreground`. Raises :class:`UsageError` for
    an invalid argument.
    """
    args = command.args or (*image.config.entrypoint, *image.config.command)
    if not args:
        raise UsageError("no command given, and the image has none", hint="danlu run -- CMD")
    view = LayerView(image.trees)
    project = command.project
    process = image_process(
        view,
        image.config,
        args,
        directory=PROJECT_DIRECTORY if project else "",
        environment=command.environment,
        edits=command.edits,
        user=command.user,
        terminal=command.terminal,
    )
    # If both outputs are one file, they are joined inside: the runtime copies two pipes, which
    # would lose the order of lines.
    one_stream = _outputs_are_one() and not command.terminal
    spec = ContainerSpec(
        process,
        RootFilesystem(image.trees),
        script=render_start_script(view, command.init, one_stream=one_stream),
        mounts=(*([Mount(PROJECT_DIRECTORY, project)] if project else []), *command.volumes),
        network_env=detect_network_environment(launcher.work, trusted=image.is_built_here),
        edits=command.edits,
        shm_size=command.shm_size,
    )
    with ExitStack() as resources:
        return run_in_foreground(launcher.prepare(spec, resources))


def _outputs_are_one() -> bool:
    try:
        output, errors = os.fstat(1), os.fstat(2)
    except OSError:
        return False
    return (output.st_dev, output.st_ino) == (errors.st_dev, errors.st_ino)
