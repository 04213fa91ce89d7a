"""A clock that advances only when a test advances it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

__all__ = ["VirtualClock", "finish_requests"]

#: Iterations of the event loop in which tasks that a timer woke finish, without any I/O.
_MAX_LOOP_TURNS = 40


class _VirtualTimer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """Time for tests (a :class:`danlu.kube.types.Clock`), starting at 2026-01-01.

    Time passes only in :meth:`advance`. ``jump`` changes the time of day alone, as setting a system
    clock does.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._day = datetime(2026, 1, 1, tzinfo=UTC)
        self._timers: list[tuple[float, int, _VirtualTimer]] = []
        self._count = 0

    def monotonic(self) -> float:
        """Return the seconds since the clock was created."""
        return self._seconds

    def now(self) -> datetime:
        """Return the time of day."""
        return self._day + timedelta(seconds=self._seconds)

    def jump(self, seconds: float) -> None:
        """Set the time of day; timers are not affected."""
        self._day += timedelta(seconds=seconds)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> _VirtualTimer:
        """Call ``callback`` after ``seconds``."""
        timer = _VirtualTimer(callback)
        self._count += 1
        heapq.heappush(self._timers, (self._seconds + max(0.0, seconds), self._count, timer))
        return timer

    @property
    def pending_timers(self) -> int:
        """The number of pending timers."""
        return sum(timer.callback is not None for _, _, timer in self._timers)

    def next(self) -> float | None:
        """The seconds until the next timer; None without one."""
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] - self._seconds if self._timers else None

    async def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass: fire the timers in order and run the tasks that they wake."""
        end = self._seconds + seconds
        await run_ready_tasks()
        while (wait := self.next()) is not None and self._seconds + wait <= end:
            due, _, timer = heapq.heappop(self._timers)
            self._seconds = max(self._seconds, due)
            callback, timer.callback = timer.callback, None
            assert callback is not None
            callback()
            await run_ready_tasks()
        self._seconds = end


async def finish_requests() -> None:
    """Let tasks go on until the servers of this event loop have answered their requests.

    In turns of the loop rather than in seconds, of which a busy machine may give it none.
    """
    for _ in range(5):
        await run_ready_tasks()
        await asyncio.sleep(0.001)


async def run_ready_tasks() -> None:
    """Let all tasks run that can proceed without I/O."""
    for _ in range(_MAX_LOOP_TURNS):
        await asyncio.sleep(0)
