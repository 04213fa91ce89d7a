"""Stop a program within its grace period, in the way that lets it clean up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import anyio

from danlu.sandbox.container_processes import handles_signal

#: Signals that Python or a caller may have changed, which a started program gets as usual.
DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)

# When this part of the grace period has passed, a program that was interrupted gets SIGTERM.
_INTERRUPT_PART = 0.75


def choose_stop_signal(process: int) -> signal.Signals:
    """Return the signal that lets a program clean up.

    SIGTERM ends Python at once unless the program handles it. SIGINT raises ``KeyboardInterrupt``,
    so ``finally`` blocks run.
    """
    interrupts = (
        _is_python(process)
        and handles_signal(process, signal.SIGINT)
        and not handles_signal(process, signal.SIGTERM)
    )
    return signal.SIGINT if interrupts else signal.SIGTERM


def _is_python(process: int) -> bool:
    # Not any program: a shell that waits for another one handles SIGINT and goes on.
    try:
        name = os.path.basename(os.readlink(f"/proc/{process}/exe"))
    except OSError:
        return False
    return name.startswith(("python", "pypy"))


class StopSignals:
    """Sends a program its stop signal once, however often it is stopped.

    A second SIGINT would interrupt the ``finally`` block that the first one started.
    ``find_process`` returns the program's process, ``send`` sends it a signal.
    """

    def __init__(self, find_process: Callable[[], int | None], send: Callable[[int], None]) -> None:
        self._find_process = find_process
        self._send = send
        self._sent = 0

    async def stop(self, ended: anyio.Event, *, grace: float) -> None:
        """Request the program's end, and wait up to ``grace`` seconds for it.

        A program that SIGINT did not end gets SIGTERM before the end of the grace period if it
        handles SIGTERM by then: without a handler, it may still be in a ``finally`` block.
        """
        if not self._sent:
            process = self._find_process()
            self._sent = choose_stop_signal(process) if process is not None else signal.SIGTERM
            self._send(self._sent)
        with anyio.move_on_after(grace):
            if self._sent == signal.SIGINT:
                with anyio.move_on_after(grace * _INTERRUPT_PART):
                    await ended.wait()
                    return
                process = self._find_process()
                if process is not None and handles_signal(process, signal.SIGTERM):
                    self._send(signal.SIGTERM)
            await ended.wait()
