"""Run a program in a running environment with this process's terminal and streams.

Every ``danlu exec`` waits for this module, so it loads little.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
from contextlib import contextmanager, suppress

from danlu.engine.exec_connection import ExecConnection

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_EXIT_HANGUP = 128 + signal.SIGHUP
_FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_in_foreground(
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
    with _preserve_terminal(terminal), _collect_signals() as arrived:
        streams = (0, 0, 0) if terminal else (stdin, 1, 2)
        connection = ExecConnection.open(directory, request, streams)
        try:
            return _wait_for_exit(connection, arrived, parent)
        finally:
            connection.close()


def _wait_for_exit(connection: ExecConnection, arrived: int, parent: int | None) -> int:
    waiting = [connection.fileno(), arrived, *([parent] if parent is not None else [])]
    while True:
        readable, _, _ = select.select(waiting, [], [])
        if parent in readable:
            return _EXIT_HANGUP
        if arrived in readable:
            for number in os.read(arrived, 64):
                if number == signal.SIGWINCH:
                    connection.notify_resize()
                else:
                    connection.send_signal(number)
        if connection.fileno() in readable:
            code = connection.read_exit()
            if code is not None:
                return code


@contextmanager
def _collect_signals() -> Iterator[int]:
    """Yield a descriptor from which the numbers of arriving signals can be read."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    # Signals that our parent ignores (nohup, a background job) stay ignored.
    heard = [number for number in _FORWARDED_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {
        number: signal.signal(number, lambda *_: None) for number in (*heard, signal.SIGWINCH)
    }
    old_wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(old_wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


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
