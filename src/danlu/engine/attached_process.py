"""Start a stopped container again, before the modules of its supervisor are loaded.

The program of an engine takes about as long to start it as Python to load them. Imports as little
as possible.
"""

from __future__ import annotations

import os
from contextlib import suppress

from danlu.util.spawn import spawn_process

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Exists while the container is stopped: how it was created, and the command that starts it.
_START_FILE = "start-command"


class AttachedProcess:
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


def start_attached(command: Sequence[str], digest: str = "") -> AttachedProcess:
    """Start a command of the engine that starts a container; raises :class:`OSError`."""
    child_input, input = os.pipe2(os.O_CLOEXEC)
    output, child_output = os.pipe2(os.O_CLOEXEC)
    # A file, because nobody reads a pipe while the container runs.
    errors = os.memfd_create("errors")
    try:
        pid = spawn_process(command, (child_input, child_output, errors), new_session=True)
    except BaseException:
        for descriptor in (input, output, errors):
            os.close(descriptor)
        raise
    finally:
        os.close(child_input)
        os.close(child_output)
    os.set_blocking(output, False)
    return AttachedProcess(pid, input, output, errors, digest)


def record_start(directory: Path, digest: str, command: Sequence[str]) -> None:
    """Write with which command the stopped container of an environment is started again."""
    # On a full disk the next start asks the engine.
    with suppress(OSError):
        (directory / _START_FILE).write_text("\0".join((digest, *command)))


def start_recorded(directory: str) -> AttachedProcess | None:
    """Start the environment's container if it is known to be stopped.

    The caller checks how it was created. If that fails, the caller starts it without what is known.
    """
    path = os.path.join(directory, _START_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            digest, *command = file.read().split("\0")
        os.unlink(path)
        return start_attached(command, digest) if command else None
    except (OSError, ValueError):
        return None
