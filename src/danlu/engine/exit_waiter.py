"""Wait for a program that runs in the foreground; loaded while it starts."""

from __future__ import annotations

import os
import select
import signal
from contextlib import contextmanager

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from danlu.engine.exec_connection import ExecConnection

_EXIT_HANGUP = 128 + signal.SIGHUP
_FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def wait_for_exit(connection: ExecConnection, parent: int | None) -> int:
    """Return the exit code of the program, to which signals and terminal sizes are forwarded.

    See :func:`danlu.engine.foreground_exec.run_in_foreground`.
    """
    with _collect_signals() as arrived:
        return _forward_to_exit(connection, arrived, parent)


def _forward_to_exit(connection: ExecConnection, arrived: int, parent: int | None) -> int:
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
