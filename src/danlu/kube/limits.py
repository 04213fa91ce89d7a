"""A token bucket: so many a second, and so many at once after a pause."""

from __future__ import annotations

from danlu.kube.clock import REAL, sleep
from danlu.kube.types import Clock

__all__ = ["TokenBucket"]


class TokenBucket:
    """Gives ``rate`` tokens a second and holds ``burst`` of them; who comes later waits longer.

    As golang.org/x/time/rate: a token may be taken before it is there, and the bucket then owes
    it, so those who wait go in the order in which they came.
    """

    def __init__(self, rate: float, burst: int, *, clock: Clock = REAL) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._clock = clock
        self._seen = clock.monotonic()

    def reserve(self) -> float:
        """Take a token, and say in how many seconds it may be used."""
        self._refill()
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)

    def take(self) -> bool:
        """Take a token if there is one now."""
        self._refill()
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    async def acquire(self) -> float:
        """Wait until a token is there, and say for how many seconds that was."""
        wait = self.reserve()
        if wait > 0.0:
            await sleep(self._clock, wait)
        return wait

    def _refill(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._seen) * self._rate)
        self._seen = now
