"""Signals of a process that waits for a program in the foreground."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def collect_signals() -> Iterator[int]:
    """Yield a descriptor from which the numbers of arriving signals can be read.

    These are SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGWINCH, which have no other effect meanwhile.
    """
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
