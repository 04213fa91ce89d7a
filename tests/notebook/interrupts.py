"""Interrupts as a kernel gets them: a signal to the main thread, at a chosen moment."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["interrupt_when", "until"]


def until(done: Callable[[], object], *, limit: float = 60.0) -> None:
    """Wait for ``done`` at most ``limit`` seconds."""
    end = time.monotonic() + limit
    while not done():
        assert time.monotonic() < end, f"not within {limit} s"
        time.sleep(0.005)


@contextmanager
def interrupt_when(when: Callable[[], object], *, times: int = 1) -> Iterator[None]:
    """Interrupt the block, which does not end by itself, when ``when`` is true."""
    main = threading.main_thread().ident
    assert main is not None

    def send_interrupt() -> None:
        until(when)
        for _ in range(times):
            signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=send_interrupt)
    thread.start()
    try:
        yield
    except KeyboardInterrupt:
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
