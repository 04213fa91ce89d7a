"""Run a container in the foreground: with our terminal or our input and output, and our signals.

Nothing here is asynchronous: a start takes milliseconds, and an event loop would add many.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from danlu.sandbox import runtime
from danlu.sandbox.launcher import waiting_shell
from danlu.sandbox.launcher.container import PreparedContainer
from danlu.util.signal_pipe import collect_signals


def run_in_foreground(container: PreparedContainer) -> int:
    """Run a container to its end and return the exit code of its program.

    SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded. Exit codes: 128+n for signal n, 126 and 127
    as in shells. The container must not have a control group, and this process no other threads.
    Raises :class:`~danlu.errors.MachineError` if the program could not be started.
    """
    terminal = container.process.terminal
    command = container.runtime.command(container.bundle)
    sys.stdout.flush()
    with _preserve_terminal(terminal), collect_signals() as arrived:
        # With a terminal the runtime must stay in our session to read it. Otherwise it gets a
        # new one, so that Ctrl-C reaches the program only once, through us.
        keeper = os.posix_spawn(
            command[0], command, container.runtime.environment(), setsid=not terminal
        )
        killed = _forward_signals(keeper, arrived)
        _, status = os.waitpid(keeper, 0)
    code = -killed if killed else os.waitstatus_to_exitcode(status)
    code, reason = runtime.interpret_exit(code, container.log, container.process.args[0])
    if code == runtime.FAILED_TO_START and reason:
        raise container.start_error("the program", reason)
    return code


def _forward_signals(keeper: int, arrived: int) -> int:
    """Forward signals to the program until it has ended; return one that was turned into a kill."""
    killed = 0
    with open(os.pidfd_open(keeper), "rb", buffering=0) as process:
        while True:
            readable, _, _ = select.select([process.fileno(), arrived], [], [])
            if arrived in readable:
                for number in os.read(arrived, 64):
                    # The runtime gets new sizes of the terminal itself.
                    if number != signal.SIGWINCH and not waiting_shell.send_signal(keeper, number):
                        killed = killed or number
            else:
                return killed


@contextmanager
def _preserve_terminal(terminal: bool) -> Iterator[None]:
    """Restore our terminal afterwards, even if the runtime was killed."""
    if not terminal or not os.isatty(0):
        yield
        return
    before: list[Any] = termios.tcgetattr(0)
    try:
        yield
    finally:
        # The terminal may be gone if its window was closed.
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)
