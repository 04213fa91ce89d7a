"""The real clock, and what can be done with any."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import anyio

from danlu.kube.types import Clock, Timer

__all__ = ["REAL", "RealClock", "sleep", "within"]


class RealClock:
    """The clock of this machine and of the running event loop."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def now(self) -> datetime:
        """The time of day, in UTC."""
        return datetime.now(UTC)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` after so many seconds, in the event loop."""
        return asyncio.get_running_loop().call_later(max(0.0, seconds), callback)


REAL: Clock = RealClock()


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait for so many seconds of ``clock``; a checkpoint where they are none."""
    if seconds <= 0:
        await anyio.lowlevel.checkpoint()
        return
    over = anyio.Event()
    timer = clock.call_later(seconds, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()


@contextmanager
def within(clock: Clock, seconds: float) -> Iterator[anyio.CancelScope]:
    """Cancel the body after so many seconds; ``cancel_called`` of the scope says that it was."""
    with anyio.CancelScope() as scope:
        timer = clock.call_later(seconds, scope.cancel)
        try:
            yield scope
        finally:
            timer.cancel()
