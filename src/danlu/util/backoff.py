"""Exponential back-off: how long to wait after repeated failures."""

from __future__ import annotations

import random
import time
from collections.abc import Callable


def exponential_delay(first: float, longest: float, failures: int) -> float:
    """Return ``first`` seconds, doubled once per earlier failure, at most ``longest``."""
    # The exponent is bounded because 2.0**1024 overflows.
    return min(longest, first * 2.0 ** min(failures, 64))


class ExponentialBackoff:
    """Delays that double with each failure and start over after a while without one.

    Each delay is lengthened by a random factor between 1 and 2 (wait.Backoff of apimachinery with
    jitter 1.0), so that clients that failed together do not come back together.

    Args:
        first: The first delay in seconds.
        longest: The upper bound of a delay, before jitter.
        reset: Start over if the last failure was longer ago than this.
    """

    def __init__(
        self,
        first: float,
        longest: float,
        *,
        reset: float = float("inf"),
        monotonic: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._first = first
        self._longest = longest
        self._reset = reset
        self._monotonic = monotonic
        self._draw = draw
        self._failures = 0
        self._last = float("-inf")

    def next_delay(self) -> float:
        """Count a failure; return the seconds to wait."""
        now = self._monotonic()
        if now - self._last > self._reset:
            self._failures = 0
        self._last = now
        delay = exponential_delay(self._first, self._longest, self._failures)
        self._failures += 1
        return delay * (1.0 + self._draw())
