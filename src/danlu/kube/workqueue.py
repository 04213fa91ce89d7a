"""Work by key: once however often it is asked for, and never the same key twice at once.

The semantics are those of client-go's util/workqueue, to the letter: what its tests claim is
claimed here too.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

import anyio

from danlu.kube.clock import REAL
from danlu.kube.ratelimit import Limiter, default_limiter
from danlu.kube.types import Clock, Timer

__all__ = ["QueueMeter", "ShutDown", "WorkQueue"]

K = TypeVar("K", bound=Hashable)


class ShutDown(Exception):
    """The queue is shut down and empty: there will be no more work."""


class QueueMeter(Protocol):
    """Told of what a queue does; times are in seconds."""

    def added(self) -> None:
        """A key was added that did not wait yet."""

    def retried(self) -> None:
        """A key was added after a failure."""

    def waited(self, seconds: float) -> None:
        """A key was given out, so long after it was added."""

    def worked(self, seconds: float) -> None:
        """The work on a key has ended."""


class WorkQueue(Generic[K]):
    """Keys to work on.

    ``add`` of a key that waits already does nothing; of one that is being worked on, it comes
    again when that is :meth:`done`. ``add_after`` adds when so many seconds have passed, the
    soonest of several counts. ``add_limited`` waits as long as ``limiter`` says, which remembers
    how often a key failed until it is forgotten.

    A queue is of one event loop; nothing but ``get`` and ``drain`` waits.
    """

    def __init__(
        self,
        *,
        limiter: Limiter[K] | None = None,
        clock: Clock = REAL,
        meter: QueueMeter | None = None,
    ) -> None:
        self.meter = meter
        self._clock = clock
        self._limiter: Limiter[K] = limiter or default_limiter(clock)
        self._ready: deque[K] = deque()
        # What must be worked on; what is in `_working` as well comes to `_ready` later.
        self._dirty: dict[K, float] = {}
        self._working: dict[K, float] = {}
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._count = 0
        self._timer: tuple[float, Timer] | None = None
        self._closed = False
        self._changed = anyio.Event()

    def __len__(self) -> int:
        """How many keys are ready to be worked on."""
        return len(self._ready)

    @property
    def working(self) -> dict[K, float]:
        """The keys that are worked on, and since when."""
        return dict(self._working)

    @property
    def waiting(self) -> int:
        """How many keys will be added later."""
        return len(self._due)

    @property
    def closed(self) -> bool:
        """Whether it is shut down."""
        return self._closed

    def add(self, key: K) -> None:
        """Have a key worked on, once."""
        if self._closed or key in self._dirty:
            return
        self._dirty[key] = self._clock.monotonic()
        if self.meter is not None:
            self.meter.added()
        if key not in self._working:
            self._ready.append(key)
            self._wake()

    def add_after(self, key: K, seconds: float) -> None:
        """Add a key when so many seconds have passed, or sooner where that was asked for."""
        if self._closed:
            return
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock.monotonic() + seconds
        if self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        self._count += 1
        heapq.heappush(self._later, (due, self._count, key))
        self._set_timer()

    def add_limited(self, key: K) -> None:
        """Add a key as soon as the limiter allows; counts as a failure of it."""
        if self.meter is not None:
            self.meter.retried()
        self.add_after(key, self._limiter.when(key))

    def forget(self, key: K) -> None:
        """A key has succeeded: the next failure is its first."""
        self._limiter.forget(key)

    def failures(self, key: K) -> int:
        """How often a key has failed since it was forgotten."""
        return self._limiter.failures(key)

    async def get(self) -> K:
        """The next key, which is then being worked on until it is :meth:`done`.

        Raises :class:`ShutDown` when the queue is shut down and nothing is left.
        """
        while not self._ready:
            if self._closed:
                raise ShutDown
            await self._changed.wait()
        key = self._ready.popleft()
        now = self._clock.monotonic()
        if self.meter is not None:
            self.meter.waited(now - self._dirty[key])
        self._working[key] = now
        del self._dirty[key]
        return key

    def done(self, key: K) -> None:
        """The work on a key has ended; it comes again where it was added meanwhile."""
        begun = self._working.pop(key, None)
        if begun is not None and self.meter is not None:
            self.meter.worked(self._clock.monotonic() - begun)
        if key in self._dirty:
            self._ready.append(key)
        self._wake()

    def shut_down(self) -> None:
        """Take no more keys; those that are ready are still given."""
        self._closed = True
        self._later.clear()
        self._due.clear()
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None
        self._wake()

    async def drain(self) -> None:
        """Take no more keys, and wait until all work has been done."""
        self.shut_down()
        while self._working or self._ready:
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _set_timer(self) -> None:
        """One timer, for the soonest."""
        if not self._later:
            return
        due = self._later[0][0]
        if self._timer is not None:
            if self._timer[0] <= due:
                return
            self._timer[1].cancel()
        wait = due - self._clock.monotonic()
        self._timer = (due, self._clock.call_later(wait, self._promote))

    def _promote(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            # A key that was put off anew, for sooner, is in the heap twice.
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)
        self._set_timer()
