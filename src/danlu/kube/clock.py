"""Time as this package sees it: a protocol that tests can replace, and the real clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol

import anyio


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> object:
        """Cancel the call; does nothing if it has already happened."""


class Clock(Protocol):
    """A source of time, replaced by a virtual one in tests."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def now(self) -> datetime:
        """Return the time of day in UTC, which may jump."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` in the event loop after ``seconds``."""


class RealClock:
    """The clock of this machine and of the running event loop."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        return datetime.now(UTC)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` in the event loop after ``seconds``."""
        return asyncio.get_running_loop().call_later(max(0.0, seconds), callback)


REAL_CLOCK: Clock = RealClock()


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait for ``seconds`` of ``clock``; only a checkpoint if that is zero or less."""
    if seconds <= 0:
        await anyio.lowlevel.checkpoint()
        return
    elapsed = anyio.Event()
    timer = clock.call_later(seconds, elapsed.set)
    try:
        await elapsed.wait()
    finally:
        timer.cancel()


@contextmanager
def move_on_after(clock: Clock, seconds: float) -> Iterator[anyio.CancelScope]:
    """Cancel the body after ``seconds``, as :func:`anyio.move_on_after` does, but by ``clock``."""
    with anyio.CancelScope() as scope:
        timer = clock.call_later(seconds, scope.cancel)
        try:
            yield scope
        finally:
            timer.cancel()
