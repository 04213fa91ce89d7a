"""A work queue: a key is processed once however often it was added, and never twice at once.

The semantics are those of client-go's util/workqueue, and its tests are repeated for this one.
Priorities are those of controller-runtime's priority queue (pkg/controller/priorityqueue), except
that every priority has a share (:mod:`danlu.kube.priorities`).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import anyio

from danlu.kube.clock import REAL_CLOCK, Clock, Timer
from danlu.kube.priorities import DEFAULT_PRIORITY, ReadyItems
from danlu.kube.ratelimit import RateLimiter

K = TypeVar("K", bound=Hashable)


class ShutDown(Exception):
    """The queue is shut down and empty."""


class QueueMeter(Protocol):
    """Receives what a queue does; durations are in seconds."""

    def on_add(self) -> None:
        """A key was added that was not in the queue."""

    def on_retry(self) -> None:
        """A key was added after a failure."""

    def on_get(self, seconds: float) -> None:
        """A key was taken ``seconds`` after it was added."""

    def on_done(self, seconds: float) -> None:
        """A key was processed within ``seconds``."""


@dataclass(slots=True)
class _QueuedKey:
    at: float
    priority: int


class WorkQueue(Generic[K]):
    """A queue of keys for the workers of one event loop; only ``get`` and ``drain`` wait.

    Adding a key that is already in the queue only raises its priority; a key that is being
    processed is processed again after :meth:`done`. If a key is added with several delays the
    shortest counts, and of several priorities the highest (controller-runtime's AddWithOpts).
    """

    def __init__(
        self,
        *,
        limiter: RateLimiter[K] | None = None,
        clock: Clock = REAL_CLOCK,
        meter: QueueMeter | None = None,
    ) -> None:
        self.meter = meter
        self._clock = clock
        self._limiter: RateLimiter[K] = limiter or RateLimiter(clock=clock)
        self._ready: ReadyItems[K] = ReadyItems()
        # All keys to process. Those in `_processing` as well enter `_ready` when they are done.
        self._dirty: dict[K, _QueuedKey] = {}
        self._processing: dict[K, float] = {}
        self._delayed_heap: list[tuple[float, int, K]] = []
        self._delayed: dict[K, _QueuedKey] = {}
        self._count = 0
        self._timer: tuple[float, Timer] | None = None
        self._is_shut_down = False
        self._changed = anyio.Event()

    def __len__(self) -> int:
        """Return the number of keys that are ready to be processed."""
        return len(self._ready)

    @property
    def processing(self) -> dict[K, float]:
        """The keys that are being processed, with the time at which that began."""
        return dict(self._processing)

    @property
    def waiting_count(self) -> int:
        """The number of keys that will be added later."""
        return len(self._delayed)

    @property
    def is_shut_down(self) -> bool:
        """Whether the queue is shut down."""
        return self._is_shut_down

    @property
    def depths(self) -> dict[int, int]:
        """The number of ready keys by priority."""
        return {DEFAULT_PRIORITY: 0, **self._ready.lengths}

    def add(self, key: K, *, priority: int = DEFAULT_PRIORITY) -> None:
        """Add a key to be processed."""
        if self._is_shut_down:
            return
        queued = self._dirty.get(key)
        if queued is not None:
            queued.priority = max(queued.priority, priority)
            if key in self._ready:
                self._ready.put(key, queued.priority)
                # A worker may be waiting for keys of a higher priority only.
                self._wake_waiters()
            return
        self._dirty[key] = _QueuedKey(self._clock.monotonic(), priority)
        if self.meter is not None:
            self.meter.on_add()
        if key not in self._processing:
            self._ready.put(key, priority)
            self._wake_waiters()

    def add_after(self, key: K, seconds: float, *, priority: int = DEFAULT_PRIORITY) -> None:
        """Add a key after ``seconds``, unless it will be added earlier anyway."""
        if self._is_shut_down:
            return
        if seconds <= 0:
            self.add(key, priority=priority)
            return
        delayed = _QueuedKey(self._clock.monotonic() + seconds, priority)
        before = self._delayed.get(key)
        if before is not None:
            delayed.priority = max(delayed.priority, before.priority)
            if before.at <= delayed.at:
                before.priority = delayed.priority
                return
        self._delayed[key] = delayed
        self._count += 1
        heapq.heappush(self._delayed_heap, (delayed.at, self._count, key))
        self._set_timer()

    def add_rate_limited(self, key: K, *, priority: int = DEFAULT_PRIORITY) -> None:
        """Add a key when the rate limiter allows it; counts as a failure of the key."""
        if self.meter is not None:
            self.meter.on_retry()
        self.add_after(key, self._limiter.when(key), priority=priority)

    def forget(self, key: K) -> None:
        """Reset the failures of a key that succeeded."""
        self._limiter.forget(key)

    def failures(self, key: K) -> int:
        """Return the number of failures since the key was forgotten (NumRequeues)."""
        return self._limiter.failures(key)

    async def get(self, *, min_priority: int | None = None) -> K:
        """Wait for the next key and start processing it, until :meth:`done`.

        Raises :class:`ShutDown` if the queue is shut down and empty.
        """
        return (await self.get_with_priority(min_priority=min_priority))[0]

    async def get_with_priority(self, *, min_priority: int | None = None) -> tuple[K, int]:
        """Wait for the next key of at least ``min_priority``; also return its priority."""
        while not self._ready.has(min_priority):
            if self._is_shut_down:
                raise ShutDown
            await self._changed.wait()
        key, priority = self._ready.take(min_priority)
        now = self._clock.monotonic()
        if self.meter is not None:
            self.meter.on_get(now - self._dirty[key].at)
        self._processing[key] = now
        del self._dirty[key]
        return key, priority

    def done(self, key: K) -> None:
        """Finish processing a key; it becomes ready again if it was added meanwhile."""
        # client-go's guarantee: a key is processed by one worker at a time, and one that was added
        # meanwhile is processed again, because its object may have changed after it was read.
        begun = self._processing.pop(key, None)
        if begun is not None and self.meter is not None:
            self.meter.on_done(self._clock.monotonic() - begun)
        queued = self._dirty.get(key)
        if queued is not None:
            self._ready.put(key, queued.priority)
        self._wake_waiters()

    def shut_down(self) -> None:
        """Accept no more keys; those that are ready can still be taken."""
        self._is_shut_down = True
        self._delayed_heap.clear()
        self._delayed.clear()
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None
        self._wake_waiters()

    async def drain(self) -> None:
        """Shut down, and wait until all ready keys have been processed."""
        self.shut_down()
        while self._processing or self._ready:
            await self._changed.wait()

    def _wake_waiters(self) -> None:
        # All of them, for workers differ in the priorities they wait for; each checks again.
        self._changed.set()
        self._changed = anyio.Event()

    def _set_timer(self) -> None:
        """Set the one timer of the queue to the earliest delayed key."""
        if not self._delayed_heap:
            return
        due = self._delayed_heap[0][0]
        if self._timer is not None:
            if self._timer[0] <= due:
                return
            self._timer[1].cancel()
        wait = due - self._clock.monotonic()
        self._timer = (due, self._clock.call_later(wait, self._promote_due))

    def _promote_due(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._delayed_heap and self._delayed_heap[0][0] <= now:
            due, _, key = heapq.heappop(self._delayed_heap)
            # A key that was added again with a shorter delay is in the heap twice.
            delayed = self._delayed.get(key)
            if delayed is not None and delayed.at == due:
                del self._delayed[key]
                self.add(key, priority=delayed.priority)
        self._set_timer()
