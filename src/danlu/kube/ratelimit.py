"""Rate limits: a token bucket for requests, and how long a failed key waits for its retry.

The semantics are those of golang.org/x/time/rate and client-go's util/workqueue.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

import anyio

from danlu.kube.clock import REAL_CLOCK, Clock, Timer
from danlu.kube.priorities import DEFAULT_PRIORITY, ReadyItems
from danlu.util.backoff import exponential_delay

K = TypeVar("K", bound=Hashable)
#: When the timer for a token fires, floating point may leave slightly less than a whole token.
_ROUNDING = 1e-9


class TokenBucket:
    """A bucket that gains ``rate`` tokens a second and holds at most ``burst`` of them.

    Waiters in :meth:`acquire` are served by priority and then in order of arrival, and every
    priority has a share (:mod:`danlu.kube.priorities`), so that creating a thousand pods does not
    delay a status update or the renewal of a lease.
    """

    def __init__(self, rate: float, burst: int, *, clock: Clock = REAL_CLOCK) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._clock = clock
        self._refilled_at = clock.monotonic()
        self._waiters: ReadyItems[anyio.Event] = ReadyItems()
        self._timer: Timer | None = None

    def reserve(self) -> float:
        """Take a token, which may put the bucket in debt; return the seconds until it is valid."""
        self._refill_tokens()
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)

    def take(self) -> bool:
        """Take a token if one is available now; return whether it was."""
        self._refill_tokens()
        if self._tokens < 1.0 - _ROUNDING:
            return False
        self._tokens -= 1.0
        return True

    async def acquire(self, *, priority: int = DEFAULT_PRIORITY) -> float:
        """Wait for a token; return the seconds waited."""
        if not self._waiters and self.take():
            return 0.0
        begun = self._clock.monotonic()
        granted = anyio.Event()
        self._waiters.put(granted, priority)
        self._grant_tokens()
        try:
            await granted.wait()
        except BaseException:
            if not self._waiters.remove(granted):
                # Cancelled after the token was granted: return it, so that the next waiter gets it.
                self._tokens += 1.0
                self._grant_tokens()
            raise
        return self._clock.monotonic() - begun

    def _grant_tokens(self) -> None:
        """Grant the available tokens to waiters, and set a timer for the next one."""
        while self._waiters and self.take():
            granted, _ = self._waiters.take()
            granted.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiters:
            seconds = max(0.0, (1.0 - self._tokens) / self._rate)
            self._timer = self._clock.call_later(seconds, self._grant_tokens)

    def _refill_tokens(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._refilled_at) * self._rate)
        self._refilled_at = now


class RateLimiter(Generic[K]):
    """Decides how long a key waits before it is retried (client-go's default controller limiter).

    The delay of a key doubles with each of its failures, and all keys together are limited to
    ``rate`` retries per second (``rate`` 0 for no limit); the longer delay counts. Unlike
    :class:`danlu.util.backoff.ExponentialBackoff` it has no jitter, as the queue already spreads
    the keys over its workers.
    """

    def __init__(
        self,
        first: float = 0.005,
        longest: float = 1000.0,
        *,
        rate: float = 10.0,
        burst: int = 100,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._first = first
        self._longest = longest
        self._bucket = TokenBucket(rate, burst, clock=clock) if rate else None
        self._failures: dict[K, int] = {}

    def when(self, key: K) -> float:
        """Count a failure of the key; return the seconds until it may be retried."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = exponential_delay(self._first, self._longest, count)
        return delay if self._bucket is None else max(delay, self._bucket.reserve())

    def forget(self, key: K) -> None:
        """Reset the failures of a key that succeeded or will not be retried."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Return the number of failures since the key was forgotten (NumRequeues)."""
        return self._failures.get(key, 0)
