"""Start a stopped container again, before the modules of its supervisor are loaded.

The engine takes about as long to start it as Python to load them. Imports as little as possible.
"""

from __future__ import annotations

import os
from contextlib import suppress

from danlu.util.spawn import spawn_process

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

#: Exists while the container is stopped: how it was created, the engine's program, and its name.
_STOPPED_FILE = "docker-stopped"


class AttachedContainer:
    """A command of the engine that starts a container and is connected to its first process.

    Attributes:
        pid: The command's process id.
        input: Its input, which the first process reads.
        output: Its output, which is the first process's.
        errors: A file with its errors.
        digest: Of what the container was created from, if it was started before that was read.
    """

    def __init__(self, pid: int, input: int, output: int, errors: int, digest: str) -> None:
        self.pid = pid
        self.input = input
        self.output = output
        self.errors = errors
        self.digest = digest


def attach_container(program: str, name: str, digest: str = "") -> AttachedContainer:
    """Start the container ``name`` by the engine's command line; raises :class:`OSError`."""
    child_input, input = os.pipe2(os.O_CLOEXEC)
    output, child_output = os.pipe2(os.O_CLOEXEC)
    # A file, because nobody reads a pipe while the container runs.
    errors = os.memfd_create("errors")
    try:
        command = [program, "start", "--attach", "--interactive", name]
        pid = spawn_process(command, (child_input, child_output, errors), new_session=True)
    except BaseException:
        for descriptor in (input, output, errors):
            os.close(descriptor)
        raise
    finally:
        os.close(child_input)
        os.close(child_output)
    os.set_blocking(output, False)
    return AttachedContainer(pid, input, output, errors, digest)


def record_stop(directory: Path, digest: str, program: str, name: str) -> None:
    """Write that the container of the environment in ``directory`` is stopped."""
    # On a full disk the next start asks the engine.
    with suppress(OSError):
        (directory / _STOPPED_FILE).write_text(f"{digest}\n{program}\n{name}\n")


def restart_container(directory: str) -> AttachedContainer | None:
    """Start the environment's container if it is known to be stopped.

    The caller checks how it was created. If that fails, the caller starts it without what is known.
    """
    path = os.path.join(directory, _STOPPED_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        os.unlink(path)
        digest, program, name = text.splitlines()
        return attach_container(program, name, digest)
    except (OSError, ValueError):
        return None
