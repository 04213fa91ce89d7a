"""A clock that goes only when it is told to."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

__all__ = ["VirtualClock"]

#: Turns of the event loop that what a timer woke may need, without any I/O, to come to rest.
_MAX_LOOP_TURNS = 40


class _VirtualTimer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """Time for tests (a :class:`danlu.kube.types.Clock`), from 2026-01-01 on.

    Nothing happens by itself: :meth:`advance` lets time pass. The time of day can be moved apart
    from it (``jump``), as a clock that is set does.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._day = datetime(2026, 1, 1, tzinfo=UTC)
        self._timers: list[tuple[float, int, _VirtualTimer]] = []
        self._count = 0

    def monotonic(self) -> float:
        """Seconds since it was made."""
        return self._seconds

    def now(self) -> datetime:
        """The time of day."""
        return self._day + timedelta(seconds=self._seconds)

    def jump(self, seconds: float) -> None:
        """Set the time of day; timers are not touched by that."""
        self._day += timedelta(seconds=seconds)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> _VirtualTimer:
        """Call ``callback`` when so many seconds have passed."""
        timer = _VirtualTimer(callback)
        self._count += 1
        heapq.heappush(self._timers, (self._seconds + max(0.0, seconds), self._count, timer))
        return timer

    @property
    def pending_timers(self) -> int:
        """How many timers are to come."""
        return sum(timer.callback is not None for _, _, timer in self._timers)

    def next(self) -> float | None:
        """In how many seconds the next timer comes; None where there is none."""
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] - self._seconds if self._timers else None

    async def advance(self, seconds: float) -> None:
        """Let so many seconds pass: every timer in turn, and what it woke comes to rest."""
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


async def run_ready_tasks() -> None:
    """Let all tasks run that can without I/O."""
    for _ in range(_MAX_LOOP_TURNS):
        await asyncio.sleep(0)
