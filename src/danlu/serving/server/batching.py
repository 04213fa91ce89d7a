"""Call a predictor from a queue: one call at a time, of all that waits and fits together.

An idle predictor starts with the requests of this turn of the event loop, so a lone one never waits
for others; while it works, requests gather. The predictor is called in one thread, which takes the
next batch itself: a busy loop does not delay it.

There is one exception. The clients of a batch usually ask again once they have their answers. If
the next call began without them, they would be a second group for ever, and each group would pay
the fixed cost of a call. So after a batch of several requests the next call waits for as many rows
as have just been answered, for less time than another call would cost, and only as long as most of
them do come back in that time: see :class:`ReturningRows`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Optional, Tuple  # noqa: UP035 (evaluated, Python 3.9)

#: The weight of the latest call in the mean duration.
_NEWEST = 0.2
#: How long the next call waits for rows: this share of the fixed cost of a call, no more than these
#: seconds, and not at all if that is less than a thread needs to wake up.
_SHARE_OF_COST, _LONGEST_WAIT, _SHORTEST_WAIT = 0.75, 0.005, 0.0002
#: The share of the rows that must have come back in that time of late.
_ENOUGH = 0.8


class QueueFull(Exception):
    """The queue is full, or its end is too far away. ``seconds`` is when to try again."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = max(1, round(seconds))


class TooSlow(Exception):
    """The call did not end in time."""


class _WaitingRequest:
    __slots__ = ("arguments", "future", "key", "rows", "start")

    def __init__(self, arguments: Any, rows: int, key: Any, future: asyncio.Future[Any]) -> None:
        self.arguments = arguments
        self.rows = rows
        self.key = key
        self.future = future
        self.start = time.monotonic()


#: A request with its result or what was raised.
_Outcome = Tuple[_WaitingRequest, Any, Optional[BaseException]]  # noqa: UP006, UP045 (Python 3.9)


class ReturningRows:
    """Whether the rows of a batch come back in less time than a call of their own would cost.

    The fixed cost of a call is what is left of the fastest call of the smallest batch without the
    cost of its rows, which the fastest call of the largest batch shows. The rows that come back are
    counted after every batch, also if the next call does not wait for them.
    """

    def __init__(self) -> None:
        self._key: Any = None
        self._fastest: dict[int, float] = {}
        self._share = 0.0
        self._answered = self._returned = 0
        self._end = 0.0

    def record_arrival(self, rows: int, now: float) -> None:
        """Count the rows of a request."""
        if now < self._end:
            self._returned += rows

    def record_call(self, key: Any, rows: int, seconds: float, now: float) -> None:
        """Begin to count the rows that come back after a call that has ended ``now``.

        What is known of calls is forgotten when their ``key`` changes.
        """
        if key != self._key:
            self._key, self._fastest = key, {}
        if self._answered:
            share = min(1.0, self._returned / self._answered)
            self._share += (share - self._share) * _NEWEST
        self._fastest[rows] = min(seconds, self._fastest.get(rows, seconds) * (1 + _NEWEST))
        self._answered, self._returned = rows, 0
        self._end = now + min(_SHARE_OF_COST * self._estimate_fixed_cost(), _LONGEST_WAIT)

    def _estimate_fixed_cost(self) -> float:
        few, many = min(self._fastest), max(self._fastest)
        if few == many:
            return 0.0
        by_row = max(0.0, self._fastest[many] - self._fastest[few]) / (many - few)
        return max(0.0, self._fastest[few] - few * by_row)

    def find_wait(self, now: float) -> float:
        """Return for how many seconds to wait for the rows of the last call."""
        wait = self._end - now
        return wait if self._share >= _ENOUGH and wait >= _SHORTEST_WAIT else 0.0


class RequestBatcher:
    """The queue of a predictor.

    Args:
        call: Called in one thread with the arguments of a request or of a batch.
        merge: Returns the arguments of a batch, given those of its requests.
        split: Returns the results of a batch's requests, given its result and their rows.
        max_rows: The most rows of a batch; 1 calls for each request by itself.
        max_waiting: The most requests that wait.
        timeout: Seconds after which a request has failed, waiting included.
        observe: Called with the rows and the seconds of each call.
        on_stuck: Called when a call did not end in ``timeout`` seconds. Its thread cannot be
            stopped, so nothing is called after it.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        *,
        merge: Callable[[Sequence[Any]], Any],
        split: Callable[[Any, Sequence[int]], list[Any]],
        max_rows: int,
        max_waiting: int,
        timeout: float,
        observe: Callable[[int, float], None],
        on_stuck: Callable[[], None],
    ) -> None:
        self._call = call
        self._merge = merge
        self._split = split
        self._max_rows = max_rows
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._observe = observe
        self._on_stuck = on_stuck
        self._waiting: collections.deque[_WaitingRequest] = collections.deque()
        self.returning = ReturningRows()
        self._missing_rows = 0
        self._thread: threading.Thread | None = None
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_idle = False
        self._is_waking = False
        self._count = 0
        self._batch: list[_WaitingRequest] = []
        self._start = 0.0
        self._is_watched = False
        self._seconds = 0.0
        self.is_stuck = False

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @property
    def is_calling(self) -> bool:
        """Whether a call runs, or hangs."""
        return bool(self._batch)

    async def submit(self, arguments: Any, *, rows: int = 1, key: Any = None) -> Any:
        """Return the predictor's result for ``arguments``.

        Requests with an equal ``key`` other than None may be called together. Raises
        :class:`QueueFull`, :class:`TooSlow`, and what the predictor raises.
        """
        if self.is_stuck:
            raise QueueFull("the predictor does not answer and is being replaced", 5)
        loop = asyncio.get_running_loop()
        item = _WaitingRequest(arguments, rows, key, loop.create_future())
        ahead = self._estimate_wait()
        if len(self._waiting) >= self._max_waiting:
            raise QueueFull(f"{len(self._waiting)} requests wait already", ahead)
        if ahead > self._timeout:
            raise QueueFull(f"requests wait for {ahead:.0f} s", ahead - self._timeout)
        self.returning.record_arrival(rows, item.start)
        self._missing_rows -= rows
        self._waiting.append(item)
        self._count += 1
        if not self._is_waking:
            self._is_waking = True
            loop.call_soon(self._wake_thread, loop, self._count)
        if self._thread is None:
            # Not to wait for at the end: it may hang.
            self._thread = threading.Thread(target=self._call_forever, daemon=True)
            self._thread.start()
        if not self._is_watched:
            self._is_watched = True
            loop.call_later(self._timeout, self._watch_call, loop)
        return await item.future

    def _estimate_wait(self) -> float:
        rows = self._count_rows() if self._seconds > 0.01 else 0
        return -(-rows // self._max_rows) * self._seconds

    def _count_rows(self) -> int:
        return sum(item.rows for item in list(self._waiting))

    def _wake_thread(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        """Wake the thread, unless this turn of the loop has brought more requests."""
        if self._count > count and self._is_idle:
            loop.call_soon(self._wake_thread, loop, self._count)
            return
        self._is_waking = False
        if self._is_idle and self._missing_rows <= 0:
            self._is_idle = False
            self._signals.put(None)

    def _watch_call(self, loop: asyncio.AbstractEventLoop) -> None:
        """Find out whether a call takes too long, as long as one runs."""
        batch, waiting = self._batch, list(self._waiting)  # before the start, which is set first
        left = self._start + self._timeout - time.monotonic()
        self._is_watched = bool(batch or waiting)
        if batch and left <= 0:
            self.is_stuck = True
            self._waiting.clear()
        if self.is_stuck:
            error = TooSlow(f"the predictor did not answer in {self._timeout:g} s")
            hung = QueueFull("the predictor hangs", 5)
            _finish_requests([(item, None, error) for item in batch])
            _finish_requests([(item, None, hung) for item in waiting])
            self._on_stuck()
        elif self._is_watched:
            loop.call_later(max(left, 0.001) if batch else self._timeout, self._watch_call, loop)

    # -- in the predictor's thread ----------------------------------------------------------------

    def _call_forever(self) -> None:
        while not self.is_stuck:
            batch, late = self._take_batch()
            self._start = time.monotonic()
            self._batch = batch
            outcomes = [*late, *self._call_batch(batch)]
            self._batch = []
            rows = sum(item.rows for item in batch) if len(batch) > 1 else 0
            self._missing_rows = min(rows, self._max_rows - self._count_rows())
            wait = self.returning.find_wait(time.monotonic()) if self._missing_rows > 0 else 0.0
            if not wait:
                self._missing_rows = 0
            # Idle before the results are sent: those who get them may ask for more, together.
            self._is_idle = True
            self._is_idle = is_idle = bool(wait) or not self._waiting
            if outcomes:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop = outcomes[0][0].future.get_loop()
                    loop.call_soon_threadsafe(_finish_requests, outcomes)
            if is_idle:
                self._wait_for_requests(wait)

    def _wait_for_requests(self, seconds: float) -> None:
        """Wait until the rows of the last call are back, but not for long, then for any request."""
        if seconds:
            with contextlib.suppress(queue.Empty):
                return self._signals.get(timeout=seconds)
            self._missing_rows = 0
            if self._waiting:
                self._is_idle = False
                return None
        return self._signals.get()

    def _take_batch(self) -> tuple[list[_WaitingRequest], list[_Outcome]]:
        """Take the first request, and those behind it that fit together with it.

        Return them, and those that waited too long.
        """
        now = time.monotonic()
        late: list[_Outcome] = []
        batch: list[_WaitingRequest] = []
        others: list[_WaitingRequest] = []
        rows = 0
        while self._waiting and (not batch or rows < self._max_rows):
            item = self._waiting.popleft()
            if item.future.done():  # the client has gone
                continue
            if item.start + self._timeout <= now:
                late.append((item, None, QueueFull("the request waited too long", self._seconds)))
            elif not batch:
                batch.append(item)
                rows = item.rows
                if item.key is None:
                    break
            elif item.key == batch[0].key and rows + item.rows <= self._max_rows:
                batch.append(item)
                rows += item.rows
            else:
                others.append(item)
        self._waiting.extendleft(reversed(others))
        return batch, late

    def _call_batch(self, batch: list[_WaitingRequest]) -> list[_Outcome]:
        if not batch:
            return []
        try:
            if len(batch) == 1:
                return [(batch[0], self._call_once(batch[0].arguments, batch), None)]
            merged = self._merge([item.arguments for item in batch])
            results = self._split(self._call_once(merged, batch), [item.rows for item in batch])
            return [(item, result, None) for item, result in zip(batch, results)]  # noqa: B905
        except BaseException as error:  # also SystemExit, which must not end the thread
            if len(batch) == 1:
                return [(batch[0], None, error)]
        # One bad request must not fail the others.
        return [outcome for item in batch for outcome in self._call_batch([item])]

    def _call_once(self, arguments: Any, batch: list[_WaitingRequest]) -> Any:
        self._start = start = time.monotonic()
        result = self._call(arguments)
        seconds = time.monotonic() - start
        self._seconds += (seconds - self._seconds) * (_NEWEST if self._seconds else 1)
        rows = sum(item.rows for item in batch)
        self.returning.record_call(batch[0].key, rows, seconds, start + seconds)
        self._observe(rows, seconds)
        return result


def _finish_requests(outcomes: list[_Outcome]) -> None:
    for item, result, error in outcomes:
        if not item.future.done():
            if error is None:
                item.future.set_result(result)
            else:
                item.future.set_exception(error)
