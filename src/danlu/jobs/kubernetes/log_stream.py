"""Merge the logs of a job's replicas: existing lines ordered by time, then new ones."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

from danlu.errors import DanluError
from danlu.jobs.kubernetes.job_watcher import JobWatcher
from danlu.jobs.kubernetes.replica_log import ReplicaLog
from danlu.jobs.types import LogLine
from danlu.kube.client import Client
from danlu.training.types import ReplicaId
from danlu.util.backoff import ExponentialBackoff

# Lines buffered for a slow consumer. One that only wants the newest lines is never further behind
# than the second number.
_QUEUE_SIZE, _MAX_LAG_LINES = 1000, 10_000
# Seconds before a log is requested again that ended although its container is running.
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0
# Seconds to wait for the last lines of a finished job.
_DRAIN_TIMEOUT = 10.0


class DropOldestQueue:
    """A queue that drops the oldest lines of each replica instead of waiting for the consumer.

    About ``capacity`` lines of all replicas together are kept, and up to as many may be about to be
    read. The last lines of each replica are never dropped. ``count`` is the number of lines added
    so far. None marks the end, as in the ``asyncio.Queue`` that it replaces.
    """

    def __init__(self, capacity: int) -> None:
        self.count = 0
        self._capacity = capacity
        self._waiting: dict[ReplicaId, deque[tuple[int, LogLine]]] = {}
        self._ready: deque[LogLine] = deque()
        self._changed = asyncio.Event()
        self._ended = False

    async def put(self, line: LogLine | None) -> None:
        """Add a line, dropping its replica's oldest if the queue is full."""
        self._changed.set()
        if line is None:
            self._ended = True
            return
        self.count += 1
        waiting = self._waiting.setdefault(line.replica, deque())
        waiting.append((self.count, line))
        while len(waiting) > max(1, self._capacity // len(self._waiting)):
            waiting.popleft()

    async def get(self) -> LogLine | None:
        """Return the next line; None after the end."""
        while not self._ready:
            if self._waiting:
                self._merge_waiting()
            elif self._ended:
                return None
            else:
                self._changed.clear()
                await self._changed.wait()
        return self._ready.popleft()

    def _merge_waiting(self) -> None:
        # All at once, because searching many replicas for each single line would be slow.
        self._ready.extend(line for _, line in heapq.merge(*self._waiting.values()))
        self._waiting.clear()


class JobLogStream:
    """Reads the logs of a watched job; no ``replicas`` means all.

    With ``newest`` it skips lines if the consumer cannot keep up.
    """

    def __init__(
        self,
        client: Client,
        watcher: JobWatcher,
        replicas: Sequence[ReplicaId],
        *,
        newest: bool = False,
    ) -> None:
        self._client = client
        self._watcher = watcher
        self._selected = tuple(replicas)
        self._logs: dict[ReplicaId, ReplicaLog] = {}
        self._tasks: dict[ReplicaId, asyncio.Task[None]] = {}
        self._error: DanluError | None = None
        self._max_tail = _MAX_LAG_LINES if newest else None
        self._queue: DropOldestQueue | asyncio.Queue[LogLine | None] = (
            DropOldestQueue(_MAX_LAG_LINES) if newest else asyncio.Queue(_QUEUE_SIZE)
        )

    async def read_existing(self, *, tail: int | None) -> AsyncGenerator[LogLine, None]:
        """Yield the lines written so far, ordered by time; the last ``tail`` of each replica."""
        if self._watcher.is_over:
            await self._watcher.read_final_pods()
        self._discover_replicas()
        if self._max_tail is not None:
            tail = self._max_tail if tail is None else min(tail, self._max_tail)
        readers = [_last_lines(log.read(), tail) for log in self._logs.values()]
        async with aclosing(_merge_by_time(readers)) as merged:
            async for line in merged:
                yield line

    async def follow(self) -> AsyncGenerator[LogLine, None]:
        """Yield the lines after those, until the job is finished."""
        supervisor = asyncio.create_task(self._follow_job())
        try:
            while (line := await self._queue.get()) is not None:
                yield line
            if self._error is not None:
                raise self._error
        finally:
            for task in (supervisor, *self._tasks.values()):
                task.cancel()
            await asyncio.wait([supervisor, *self._tasks.values()])

    def _discover_replicas(self) -> None:
        for replica in sorted(self._watcher.pods):
            selected = not self._selected or replica in self._selected
            if selected and replica not in self._logs:
                self._logs[replica] = ReplicaLog(self._client, self._watcher, replica)

    # -- following --------------------------------------------------------------------------------

    async def _follow_job(self) -> None:
        """Queue all lines, then the end of the stream, even after an error."""
        try:
            await self._follow_replicas()
        except DanluError as error:
            self._error = error
        await self._queue.put(None)

    async def _follow_replicas(self) -> None:
        """Run a task for each replica until all have ended."""
        while True:
            # Read before looking at the pods: a change meanwhile makes the wait return immediately.
            before = self._watcher.generation
            over = self._watcher.is_over
            if over:
                await self._watcher.read_final_pods()
            self._discover_replicas()
            for replica, log in self._logs.items():
                if replica not in self._tasks:
                    self._tasks[replica] = asyncio.create_task(self._follow_replica(log))
            self._reraise_failures()
            if over:
                break
            await self._watcher.wait_for_change(before)
        await asyncio.gather(*self._tasks.values())

    def _reraise_failures(self) -> None:
        for task in self._tasks.values():
            if task.done():
                task.result()

    async def _follow_replica(self, log: ReplicaLog) -> None:
        backoff = ExponentialBackoff(_FIRST_DELAY, _LONGEST_DELAY)
        while True:
            before = self._watcher.generation
            over, running = self._watcher.is_over, log.is_running
            count = await self._read_until_end(log, over=over)
            if over:
                return
            if running and log.is_running:
                # The connection ended, not the container: proxies and kubelets limit its duration.
                if count:
                    backoff.reset()
                await asyncio.sleep(backoff.next_delay())
            else:
                backoff.reset()
                await self._watcher.wait_for_change(before)

    async def _read_until_end(self, log: ReplicaLog, *, over: bool) -> int:
        """Queue lines until the container or the job ends, and return their number."""
        if over:
            await self._watcher.read_final_pods()
            return await self._enqueue_lines(log, follow=False)
        reading = asyncio.create_task(self._enqueue_lines(log, follow=True))
        try:
            while not reading.done():
                before = self._watcher.generation
                if self._watcher.is_over:
                    # A container that ended still has lines to give; others are abandoned.
                    timeout = 0.0 if log.is_running else _DRAIN_TIMEOUT
                    await asyncio.wait([reading], timeout=timeout)
                    break
                changed = asyncio.create_task(self._watcher.wait_for_change(before))
                await asyncio.wait([reading, changed], return_when=asyncio.FIRST_COMPLETED)
                await _cancel_task(changed)
            return reading.result() if reading.done() else 1
        finally:
            await _cancel_task(reading)

    async def _enqueue_lines(self, log: ReplicaLog, *, follow: bool) -> int:
        count = 0
        async with aclosing(log.read(follow=follow)) as lines:
            async for line in lines:
                await self._queue.put(line)
                count += 1
        return count


async def _cancel_task(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _last_lines(
    lines: AsyncGenerator[LogLine, None], tail: int | None
) -> AsyncGenerator[LogLine, None]:
    """Yield the last ``tail`` lines; all if it is None."""
    async with aclosing(lines) as stream:
        if tail is None:
            async for line in stream:
                yield line
            return
        last: deque[LogLine] = deque(maxlen=tail)
        async for line in stream:
            last.append(line)
    for line in last:
        yield line


async def _merge_by_time(
    readers: Sequence[AsyncGenerator[LogLine, None]],
) -> AsyncGenerator[LogLine, None]:
    """Merge by time, keeping the order of each reader's own lines."""
    async with AsyncExitStack() as stack:
        for reader in readers:
            stack.push_async_callback(reader.aclose)
        firsts = await asyncio.gather(*(_next_line(reader) for reader in readers))
        heap = [(line.time, index, line) for index, line in enumerate(firsts) if line is not None]
        heapq.heapify(heap)
        while heap:
            _, index, line = heap[0]
            yield line
            following = await _next_line(readers[index])
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following.time, index, following))


async def _next_line(reader: AsyncGenerator[LogLine, None]) -> LogLine | None:
    return await anext(reader, None)
