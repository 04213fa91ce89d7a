"""Run a program in a running environment with this process's terminal and streams.

Every ``danlu exec`` waits for this module, so it loads little before the program is started.
"""

from __future__ import annotations

import os
import sys
import termios
from contextlib import contextmanager, suppress

from danlu.engine.exec_connection import ExecConnection

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def exec_in_foreground(
    directory: str | os.PathLike[str],
    request: bytes,
    *,
    terminal: bool = False,
    stdin: int = 0,
    parent: int | None = None,
) -> int:
    """Run a program and return its exit code; signals and terminal sizes are forwarded.

    ``directory`` is that of the environment, and ``request`` the result of
    :func:`danlu.engine.environment_control.encode_exec`. If it asks for a ``terminal``, our
    standard input must be one; otherwise ``stdin`` is the descriptor that the program reads.
    ``parent`` is a pidfd of the process that the program ends with. Raises
    :class:`~danlu.errors.UsageError` if the environment does not run.
    """
    sys.stdout.flush()
    with _preserve_terminal(terminal):
        streams = (0, 0, 0) if terminal else (stdin, 1, 2)
        connection = ExecConnection.open(directory, request, streams)
        try:
            # A signal meanwhile ends this process, and thus the program.
            from danlu.engine.exit_waiter import wait_for_exit

            return wait_for_exit(connection, parent)
        finally:
            connection.close()


@contextmanager
def _preserve_terminal(terminal: bool) -> Iterator[None]:
    """Restore our terminal afterwards, which the OCI runtime makes raw."""
    if not terminal:
        yield
        return
    before = termios.tcgetattr(0)
    try:
        yield
    finally:
        # The terminal may be gone if its window was closed.
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)
