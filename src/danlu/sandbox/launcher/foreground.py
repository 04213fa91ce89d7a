"""Run a container in the foreground: with our terminal or our input and output, and our signals.

Nothing here is asynchronous: a start takes milliseconds, and an event loop would add many.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from danlu.sandbox import runtime
from danlu.sandbox.launcher import waiting_shell
from danlu.sandbox.launcher.container import PreparedContainer

_FORWARDED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def run_in_foreground(container: PreparedContainer) -> int:
    """Run a container to its end and return the exit code of its program.

    SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded. Exit codes: 128+n for signal n, 126 and 127
    as in shells. The container must not have a control group, and this process no other threads.
    Raises :class:`~danlu.errors.MachineError` if the program could not be started.
    """
    terminal = container.process.terminal
    command = container.runtime.command(container.bundle)
    killed: list[int] = []
    sys.stdout.flush()
    with _preserve_terminal(terminal), _forward_signals(killed) as keeper:
        # With a terminal the runtime must stay in our session to read it. Otherwise it gets a
        # new one, so that Ctrl-C reaches the program only once, through us.
        pid = os.posix_spawn(
            command[0], command, container.runtime.environment(), setsid=not terminal
        )
        keeper(pid)
        _, status = os.waitpid(pid, 0)
    code = -killed[0] if killed else os.waitstatus_to_exitcode(status)
    code, reason = runtime.interpret_exit(code, container.log, container.process.args[0])
    if code == runtime.FAILED_TO_START and reason:
        raise container.start_error("the program", reason)
    return code


@contextmanager
def _forward_signals(killed: list[int]) -> Iterator[Callable[[int], None]]:
    """Forward signals to the program; yields a function to call with the keeper's process id.

    Signals that arrive before that are forwarded then. ``killed`` receives a signal that had to be
    turned into a kill.
    """
    keepers: list[int] = []
    waiting: list[int] = []

    def forward(number: int, frame: object) -> None:
        if not keepers:
            waiting.append(number)
        elif not waiting_shell.send_signal(keepers[0], number):
            killed.append(number)

    def take(keeper: int) -> None:
        keepers.append(keeper)
        for number in waiting:
            forward(number, None)

    # Signals that our parent ignores (nohup, a background job) stay ignored.
    heard = [number for number in _FORWARDED_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, forward) for number in heard}
    try:
        yield take
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
