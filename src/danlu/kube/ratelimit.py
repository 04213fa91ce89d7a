"""How long a key waits before it is tried again (client-go, util/workqueue)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from danlu.kube.clock import REAL
from danlu.kube.limits import TokenBucket
from danlu.kube.types import Clock

__all__ = ["Bucket", "Exponential", "Limiter", "Slowest", "default_limiter"]

K = TypeVar("K", bound=Hashable)
_In = TypeVar("_In", bound=Hashable, contravariant=True)


class Limiter(Protocol[_In]):
    """Says how long a key waits."""

    def when(self, key: _In, /) -> float:
        """Seconds until the key may be tried again; counts a failure."""

    def forget(self, key: _In, /) -> None:
        """The key has succeeded, or nobody will try it again."""

    def failures(self, key: _In, /) -> int:
        """How often it failed since it was forgotten."""


class Exponential(Generic[K]):
    """``first`` seconds, doubled with every failure of a key up to ``longest``."""

    def __init__(self, first: float = 0.005, longest: float = 1000.0) -> None:
        self._first = first
        self._longest = longest
        self._failures: dict[K, int] = {}

    def when(self, key: K, /) -> float:
        """Seconds until the key may be tried again."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        return float(min(self._longest, self._first * 2.0 ** min(count, 64)))

    def forget(self, key: K, /) -> None:
        """Begin with the first wait again."""
        self._failures.pop(key, None)

    def failures(self, key: K, /) -> int:
        """How often it failed."""
        return self._failures.get(key, 0)


class Bucket(Generic[K]):
    """So many tries a second of all keys together."""

    def __init__(self, rate: float = 10.0, burst: int = 100, *, clock: Clock = REAL) -> None:
        self._bucket = TokenBucket(rate, burst, clock=clock)

    def when(self, key: K, /) -> float:
        """Seconds until there is a token for it."""
        return self._bucket.reserve()

    def forget(self, key: K, /) -> None:
        """Nothing is remembered of a key."""

    def failures(self, key: K, /) -> int:
        """Nothing is counted."""
        return 0


class Slowest(Generic[K]):
    """The longest that any of several says."""

    def __init__(self, *limiters: Limiter[K]) -> None:
        self._limiters = limiters

    def when(self, key: K, /) -> float:
        """The longest wait."""
        return max(one.when(key) for one in self._limiters)

    def forget(self, key: K, /) -> None:
        """All of them forget it."""
        for one in self._limiters:
            one.forget(key)

    def failures(self, key: K, /) -> int:
        """The most that any of them counted."""
        return max(one.failures(key) for one in self._limiters)


def default_limiter(clock: Clock = REAL) -> Limiter[Hashable]:
    """client-go's: 5 ms to 1000 s for a key, ten tries a second (a hundred at once) for all."""
    return Slowest(Exponential[Hashable](), Bucket[Hashable](clock=clock))
