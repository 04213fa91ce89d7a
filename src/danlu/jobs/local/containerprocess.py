"""What runs in a container: its program, what is mounted, how it enters its control group."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from danlu.engine import embedded
from danlu.errors import MachineError
from danlu.graph.imageconfig import ImageConfig
from danlu.jobs.local.cgroup import enter_script
from danlu.jobs.local.types import Container
from danlu.sandbox import bundle
from danlu.sandbox.types import Mount, Process
from danlu.sandbox.union import Union

__all__ = ["SHELL", "THEN_PROGRAM", "entering", "mounts_of", "process_file", "process_of"]

SHELL = "/bin/sh"
THEN_PROGRAM = 'exec "$@"'


def process_of(container: Container, config: ImageConfig, union: Union) -> Process:
    """The program of a container, as its image and the job say.

    Raises :class:`MachineError` where neither has a command, :class:`UsageError` for a user that
    the image does not have.
    """
    given = container.args
    command = (*config.entrypoint, *(given or config.command)) if container.arguments else given
    command = command or (*config.entrypoint, *config.command)
    if not command:
        raise MachineError(
            f"the container {container.name} has no command, and its image has none",
            hint="give it a `command`",
        )
    host = {"HOSTNAME": container.host} if container.host else {}
    return embedded.process_of(
        union,
        config,
        command,
        directory=container.directory,
        environment={**host, **container.environment},
    )


def mounts_of(container: Container) -> list[Mount]:
    """Its volumes, what lies below another after it."""
    mounts = [Mount(one.target, one.source, readonly=one.readonly) for one in container.volumes]
    return sorted(mounts, key=lambda mount: mount.target.rstrip("/").split("/"))


def entering(process: Process, count: int) -> Process:
    """``process``, entering a control group first by its descriptors from 3 on."""
    if not count:
        return process
    script = f"{enter_script(count)}{THEN_PROGRAM}"
    return msgspec.structs.replace(process, args=(SHELL, "-c", script, "danlu", *process.args))


def process_file(place: Path, process: Process) -> Path:
    """A new file in a bundle with a further program, for the runtime."""
    path = place / f"exec.{os.urandom(6).hex()}"
    data = msgspec.json.encode(bundle.process_document(process))
    # It holds the environment, which may hold secrets.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    return path
