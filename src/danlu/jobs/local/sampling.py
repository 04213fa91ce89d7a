"""What the replicas of a job use, measured again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import anyio

from danlu.jobs.local.crew import Crew
from danlu.jobs.local.types import Usage
from danlu.jobs.local.views import Used

__all__ = ["Sampler"]

_GRAIN = 1 << 20


class Sampler:
    """Measures every ``interval`` seconds; ``used`` is by attempt."""

    def __init__(self, crew: Crew, *, interval: float) -> None:
        self.used: Mapping[str, Used] = {}
        self._crew = crew
        self._interval = interval
        self._before: dict[str, tuple[float, Usage]] = {}

    async def run(self, publish: Callable[[], None]) -> None:
        """Measure for ever, and have it published."""
        while True:
            self._measure()
            publish()
            await anyio.sleep(self._interval)

    def _measure(self) -> None:
        found, used = {}, {}
        for attempt in self._crew.attempts():
            usage = attempt.usage()
            if usage is not None:
                found[attempt.uid] = time.monotonic(), usage
                used[attempt.uid] = _used(self._before.get(attempt.uid), found[attempt.uid])
        self._before, self.used = found, used


def _used(before: tuple[float, Usage] | None, after: tuple[float, Usage]) -> Used:
    # Rounded, so that what sleeps does not change.
    memory = after[1].memory // _GRAIN * _GRAIN
    if before is None or after[0] <= before[0]:
        return Used(None, memory)
    cores = (after[1].cpu - before[1].cpu) / (after[0] - before[0])
    return Used(max(0.0, round(cores, 2)), memory)
