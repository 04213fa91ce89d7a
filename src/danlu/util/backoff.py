"""Exponential back-off: how long to wait after repeated failures."""

from __future__ import annotations

import random
import time
from collections.abc import Callable


def exponential_delay(first: float, longest: float, failures: int) -> float:
    """Return ``first`` seconds, doubled once per earlier failure, at most ``longest``."""
    # The exponent is bounded because 2.0**1024 overflows.
    return min(longest, first * 2.0 ** min(failures, 64))


def draw_delay(first: float, longest: float, failures: int, draw: float) -> float:
    """Return an exponential delay with jitter: from ``first`` to twice that, then doubled.

    Clients that failed together do not come back together, not even at the limit: no delay is
    longer than ``longest``, and those at the limit are spread over its upper half. ``draw`` is
    between 0 and 1.
    """
    return exponential_delay(first, longest / 2, failures) * (1.0 + draw)


class ExponentialBackoff:
    """Delays (:func:`draw_delay`) that double and start over after a while without a failure.

    Args:
        first: The shortest delay in seconds.
        longest: The longest delay, with jitter.
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
        delay = draw_delay(self._first, self._longest, self._failures, self._draw())
        self._failures += 1
        return delay

    def reset(self) -> None:
        """Start over: the next delay is the first one."""
        self._failures = 0
