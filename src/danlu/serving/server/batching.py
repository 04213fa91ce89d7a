"""Call a predictor from a queue: one call at a time, of all that waits and fits together.

Work-conserving: an idle predictor starts at once with the requests that wait, so a lone one never
waits for others; while it works, requests gather. Nothing is timed.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

#: The weight of the latest call in the mean duration.
_NEWEST = 0.2


class QueueFull(Exception):
    """The queue is full, or its end is too far away. ``seconds`` is when to try again."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = max(1, round(seconds))


class TooSlow(Exception):
    """The call did not end in time."""


class _WaitingRequest:
    __slots__ = ("arguments", "deadline", "future", "key", "rows")

    def __init__(
        self, arguments: Any, rows: int, key: Any, deadline: float, future: asyncio.Future[Any]
    ) -> None:
        self.arguments = arguments
        self.rows = rows
        self.key = key
        self.deadline = deadline
        self.future = future


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
        self._thread = ThreadPoolExecutor(1, "predictor")
        self._waiting: collections.deque[_WaitingRequest] = collections.deque()
        self._task: asyncio.Task[None] | None = None
        self._seconds = 0.0
        self.is_stuck = False

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @property
    def is_calling(self) -> bool:
        """Whether a call runs, or hangs."""
        return self.is_stuck or self._task is not None

    async def submit(self, arguments: Any, *, rows: int = 1, key: Any = None) -> Any:
        """Return the predictor's result for ``arguments``.

        Requests with an equal ``key`` other than None may be called together. Raises
        :class:`QueueFull`, :class:`TooSlow`, and what the predictor raises.
        """
        if self.is_stuck:
            raise QueueFull("the predictor does not answer and is being replaced", 5)
        ahead = self._estimate_wait()
        if len(self._waiting) >= self._max_waiting:
            raise QueueFull(f"{len(self._waiting)} requests wait already", ahead)
        if ahead > self._timeout:
            raise QueueFull(f"requests wait for {ahead:.0f} s", ahead - self._timeout)
        loop = asyncio.get_running_loop()
        item = _WaitingRequest(
            arguments, rows, key, loop.time() + self._timeout, loop.create_future()
        )
        self._waiting.append(item)
        if self._task is None:
            self._task = loop.create_task(self._run_queue())
        return await item.future

    def _estimate_wait(self) -> float:
        rows = sum(item.rows for item in self._waiting) if self._seconds > 0.01 else 0
        return -(-rows // self._max_rows) * self._seconds

    async def _run_queue(self) -> None:
        """Call until nothing waits."""
        try:
            while self._waiting and not self.is_stuck:
                batch = self._take_batch()
                if batch:
                    await self._call_batch(batch)
        finally:
            self._task = None

    def _take_batch(self) -> list[_WaitingRequest]:
        """Take the first request, and those behind it that fit together with it."""
        now = asyncio.get_running_loop().time()
        batch: list[_WaitingRequest] = []
        others: list[_WaitingRequest] = []
        rows = 0
        while self._waiting and (not batch or rows < self._max_rows):
            item = self._waiting.popleft()
            if item.future.done():  # the client has gone
                continue
            if item.deadline <= now:
                item.future.set_exception(QueueFull("the request waited too long", self._seconds))
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
        return batch

    async def _call_batch(self, batch: list[_WaitingRequest]) -> None:
        try:
            if len(batch) == 1:
                results = [await self._call_once(batch[0].arguments, batch)]
            else:
                counts = [item.rows for item in batch]
                merged = self._merge([item.arguments for item in batch])
                results = self._split(await self._call_once(merged, batch), counts)
        except TooSlow as error:
            for item in (*batch, *self._waiting):
                _set_error(item, error if item in batch else QueueFull("the predictor hangs", 5))
            self._waiting.clear()
            self._on_stuck()
        except Exception as error:
            if len(batch) == 1:
                _set_error(batch[0], error)
                return
            # One bad request must not fail the others.
            for item in batch:
                if not self.is_stuck:
                    await self._call_batch([item])
        else:
            for item, result in zip(batch, results):  # noqa: B905 (Python 3.9)
                if not item.future.done():
                    item.future.set_result(result)

    async def _call_once(self, arguments: Any, batch: list[_WaitingRequest]) -> Any:
        start = time.monotonic()
        running = asyncio.get_running_loop().run_in_executor(self._thread, self._call, arguments)
        done, _ = await asyncio.wait([running], timeout=self._timeout)
        if not done:
            self.is_stuck = True
            raise TooSlow(f"the predictor did not answer in {self._timeout:g} s")
        seconds = time.monotonic() - start
        self._seconds += (seconds - self._seconds) * (_NEWEST if self._seconds else 1)
        self._observe(sum(item.rows for item in batch), seconds)
        return running.result()


def _set_error(item: _WaitingRequest, error: BaseException) -> None:
    if not item.future.done():
        item.future.set_exception(error)
