"""Waits that grow with failures and are forgotten after a while without any."""

from __future__ import annotations

import random
from collections.abc import Callable

from danlu.kube.types import Clock

__all__ = ["Growing"]


class Growing:
    """Seconds to wait: ``first``, doubling up to ``longest``, each up to doubled again by chance.

    After ``reset`` seconds without a failure it begins anew (apimachinery, wait.Backoff with
    jitter 1.0).
    """

    def __init__(
        self,
        first: float,
        longest: float,
        *,
        reset: float,
        clock: Clock,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._first = first
        self._longest = longest
        self._reset = reset
        self._clock = clock
        self._draw = draw
        self._failures = 0
        self._last = float("-inf")

    def next(self) -> float:
        """The wait after one more failure."""
        now = self._clock.monotonic()
        if now - self._last > self._reset:
            self._failures = 0
        self._last = now
        wait = min(self._longest, self._first * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return wait * (1.0 + self._draw())
