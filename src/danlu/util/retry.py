"""Retry what failed temporarily; the type of the error says whether a retry makes sense."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import msgspec

from danlu.errors import TemporaryError
from danlu.util.backoff import draw_delay

T = TypeVar("T")


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often to retry and how long to wait in between, in seconds.

    Delays double from ``initial_delay`` to ``max_delay``; each is drawn evenly between half of that
    and all of it, so that many clients that failed together do not all come back together. No
    attempt starts later than ``deadline`` seconds after the first.
    """

    attempts: int = 5
    initial_delay: float = 0.5
    max_delay: float = 10.0
    deadline: float = 120.0

    def delay(self, failures: int, draw: float) -> float:
        """Return the wait after ``failures`` failures (at least 1); ``draw`` is between 0 and 1."""
        return draw_delay(self.initial_delay / 2, self.max_delay, failures - 1, draw)


async def _anyio_sleep(seconds: float) -> None:
    await anyio.sleep(seconds)


async def retry(
    attempt: Callable[[], Awaitable[T]],
    *,
    backoff: RetryPolicy = RetryPolicy(),
    on_retry: Callable[[TemporaryError, float], None] | None = None,
    sleep: Callable[[float], Awaitable[None]] = _anyio_sleep,
    clock: Callable[[], float] = time.monotonic,
    draw: Callable[[], float] = random.random,
) -> T:
    """Await ``attempt()``, retrying after each :class:`TemporaryError` as ``backoff`` allows.

    If the error has ``retry_after`` (the seconds a server asked for), at least that long is waited.
    ``on_retry`` is called with the error and the wait. Other errors, and the last one, are raised.
    """
    started = clock()
    failures = 0
    while True:
        try:
            return await attempt()
        except TemporaryError as error:
            failures += 1
            requested = getattr(error, "retry_after", None) or 0.0
            wait = max(backoff.delay(failures, draw()), float(requested))
            if failures >= backoff.attempts or clock() - started + wait > backoff.deadline:
                raise
            if on_retry is not None:
                on_retry(error, wait)
        # Outside the handler, so that a cancellation during the wait has no unrelated context.
        await sleep(wait)
