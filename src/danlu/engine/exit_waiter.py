"""Wait for a program that runs in the foreground; loaded while it starts."""

from __future__ import annotations

import os
import select
import signal

from danlu.util.signal_pipe import collect_signals

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from danlu.engine.exec_connection import ExecConnection

_EXIT_HANGUP = 128 + signal.SIGHUP


def wait_for_exit(connection: ExecConnection, parent: int | None) -> int:
    """Return the exit code of the program, to which signals and terminal sizes are forwarded.

    See :func:`danlu.engine.foreground_exec.exec_in_foreground`.
    """
    with collect_signals() as arrived:
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
