"""Interrupts as a kernel gets them: a signal to the main thread, at a chosen moment."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["ANSWERED", "interrupt_when", "until"]

#: Seconds within which an interrupt must be handled.
ANSWERED = 0.5


def until(done: Callable[[], object], *, limit: float = 10.0) -> None:
    """Wait for ``done`` at most ``limit`` seconds."""
    end = time.monotonic() + limit
    while not done():
        assert time.monotonic() < end, f"not within {limit} s"
        time.sleep(0.005)


@contextmanager
def interrupt_when(when: Callable[[], object], *, times: int = 1) -> Iterator[None]:
    """Interrupt the block when ``when`` is true; it must then raise KeyboardInterrupt in time."""
    at: list[float] = []
    main = threading.main_thread().ident
    assert main is not None

    def send_interrupt() -> None:
        until(when)
        at.append(time.monotonic())
        for _ in range(times):
            signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=send_interrupt)
    thread.start()
    try:
        yield
    except KeyboardInterrupt:
        assert time.monotonic() - at[0] < ANSWERED
        _absorb_interrupts(thread)
    else:
        raise AssertionError("it was not interrupted")


def _absorb_interrupts(thread: threading.Thread) -> None:
    """Absorb the interrupts after the first one."""
    while True:
        try:
            thread.join()
            time.sleep(0)
        except KeyboardInterrupt:
            continue
        return
