"""Start a program of danlu in a new session, and read what it reports when it is ready."""

from __future__ import annotations

import os
import select
import sys

from danlu.util.spawn import spawn_process

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_REPORT_TIMEOUT_MS = 60_000
_CHUNK_SIZE = 1 << 16
#: The number of the first descriptor that the process gets besides its standard streams.
FIRST_FD = 3


def spawn_module(
    module: str,
    arguments: Sequence[str],
    log: str | os.PathLike[str],
    *,
    descriptors: Sequence[int] = (),
) -> int:
    """Start ``python -m module`` as :func:`spawn_program` does; return its report's descriptor."""
    # -P: a module of the current directory, often a project's, must not be imported instead.
    command = [sys.executable, "-P", "-m", module, *arguments]
    return spawn_program(command, log, descriptors=descriptors)[1]


def spawn_program(
    command: Sequence[str],
    log: str | os.PathLike[str],
    *,
    descriptors: Sequence[int] = (),
) -> tuple[int, int]:
    """Start a program in a new session; return its process id and the descriptor of its report.

    Its output goes to ``log``. It writes its report to the descriptor ``FIRST_FD`` and gets
    ``descriptors`` as the numbers that follow.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    output = os.open(log, flags, 0o600)
    try:
        files = None, output, output, writing, *descriptors
        pid = spawn_process(command, files, new_session=True)
    finally:
        os.close(writing)
        os.close(output)
    return pid, reading


def read_report(reading: int) -> bytes:
    """Return what the process writes before it closes the pipe; empty if it says nothing."""
    report = b""
    poller = select.poll()
    poller.register(reading, select.POLLIN | select.POLLHUP)
    try:
        while poller.poll(_REPORT_TIMEOUT_MS):
            data = os.read(reading, _CHUNK_SIZE)
            if not data:
                break
            report += data
    finally:
        os.close(reading)
    return report
