"""Try again what failed for a moment: the type of the error says whether that makes sense."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from danlu.errors import TemporaryError

__all__ = ["Backoff", "retry"]

T = TypeVar("T")


class Backoff(msgspec.Struct, frozen=True):
    """How often and how long apart: seconds, doubling from ``first`` to ``longest``.

    Each wait is drawn evenly between half of that and all of it, so that many who failed together
    do not come back together. No attempt begins later than ``within`` seconds after the first.
    """

    attempts: int = 5
    first: float = 0.5
    longest: float = 10.0
    within: float = 120.0

    def wait(self, failures: int, draw: float) -> float:
        """Seconds to wait after so many failures (1 at least); ``draw`` is between 0 and 1."""
        full = min(self.longest, self.first * 2.0 ** min(failures - 1, 32))
        return full * (0.5 + 0.5 * draw)


async def _sleep(seconds: float) -> None:
    import anyio

    await anyio.sleep(seconds)


async def retry(
    attempt: Callable[[], Awaitable[T]],
    *,
    backoff: Backoff = Backoff(),
    on_retry: Callable[[TemporaryError, float], None] | None = None,
    sleep: Callable[[float], Awaitable[None]] = _sleep,
    clock: Callable[[], float] = time.monotonic,
    draw: Callable[[], float] = random.random,
) -> T:
    """Await ``attempt()``, again after each :class:`TemporaryError` while ``backoff`` allows.

    An error with an attribute ``retry_after`` (seconds, as a server asked for) is waited for that
    long at least. ``on_retry`` is told the error and the wait. Other errors, and the last one, are
    raised as they are.
    """
    begun = clock()
    failures = 0
    while True:
        try:
            return await attempt()
        except TemporaryError as error:
            failures += 1
            asked = getattr(error, "retry_after", None) or 0.0
            wait = max(backoff.wait(failures, draw()), float(asked))
            if failures >= backoff.attempts or clock() - begun + wait > backoff.within:
                raise
            if on_retry is not None:
                on_retry(error, wait)
        # Outside the handler: a cancellation during the wait must not carry the error along.
        await sleep(wait)
