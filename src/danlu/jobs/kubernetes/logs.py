"""The logs of a job's replicas as one: what is there by its time, then as it comes."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

from danlu.errors import DanluError
from danlu.jobs.kubernetes.logbox import Box, NewestLines
from danlu.jobs.kubernetes.replicalog import ReplicaLog
from danlu.jobs.kubernetes.sight import Sight
from danlu.jobs.types import LogLine
from danlu.kube.client import Client
from danlu.training.types import ReplicaId

__all__ = ["Logs"]

#: So many lines are held for whoever reads slower than they come; who keeps up only with the newest
#: is never further behind than that.
_HELD, _FAR = 1000, 10_000

#: Seconds to wait before a log is asked for again that ended though its container runs.
_FIRST, _LONGEST = 0.1, 5.0

#: Seconds that the last lines may take once the job is finished.
_LAST = 10.0


class Logs:
    """Reads the logs of a job that is followed; ``replicas`` empty for all.

    ``newest`` passes over lines where whoever reads cannot keep up.
    """

    def __init__(
        self,
        client: Client,
        sight: Sight,
        replicas: Sequence[ReplicaId],
        *,
        newest: bool = False,
    ) -> None:
        self._client = client
        self._sight = sight
        self._wanted = tuple(replicas)
        self._logs: dict[ReplicaId, ReplicaLog] = {}
        self._tasks: dict[ReplicaId, asyncio.Task[None]] = {}
        self._error: DanluError | None = None
        self._most = _FAR if newest else None
        self._box: Box = NewestLines(_FAR) if newest else asyncio.Queue(_HELD)

    async def there(self, *, tail: int | None) -> AsyncGenerator[LogLine, None]:
        """What was written until now, by its time; the last ``tail`` lines of each replica."""
        self._find()
        if self._most is not None:
            tail = self._most if tail is None else min(tail, self._most)
        readers = [_tail(one.read(), tail) for one in self._logs.values()]
        async with aclosing(_merged(readers)) as merged:
            async for line in merged:
                yield line

    async def coming(self) -> AsyncGenerator[LogLine, None]:
        """What comes after that, until the job is finished."""
        supervisor = asyncio.create_task(self._supervise())
        try:
            while (line := await self._box.get()) is not None:
                yield line
            if self._error is not None:
                raise self._error
        finally:
            for task in (supervisor, *self._tasks.values()):
                task.cancel()
            await asyncio.wait([supervisor, *self._tasks.values()])

    def _find(self) -> None:
        """Know the replicas there are by now."""
        for replica in sorted(self._sight.pods):
            if replica not in self._logs and (not self._wanted or replica in self._wanted):
                self._logs[replica] = ReplicaLog(self._client, self._sight, replica)

    # -- following --------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        """Give all there will be, then the end, also where something went wrong."""
        try:
            await self._attend()
        except DanluError as error:
            self._error = error
        await self._box.put(None)

    async def _attend(self) -> None:
        """A task for each replica, until all have read all."""
        while True:
            before = self._sight.changes
            over = self._sight.over
            self._find()
            for replica, log in self._logs.items():
                if replica not in self._tasks:
                    self._tasks[replica] = asyncio.create_task(self._follow(log))
            self._raise_failed()
            if over:
                break
            await self._sight.changed(before)
        await asyncio.gather(*self._tasks.values())

    def _raise_failed(self) -> None:
        for task in self._tasks.values():
            if task.done():
                task.result()

    async def _follow(self, log: ReplicaLog) -> None:
        pause = _FIRST
        while True:
            before = self._sight.changes
            over, running = self._sight.over, log.running
            read = await self._read(log, over=over)
            if over:
                return
            if running and log.running:
                # It ended, and not the container: a proxy's or a kubelet's time was over.
                await asyncio.sleep(pause)
                pause = _FIRST if read else min(2 * pause, _LONGEST)
            else:
                pause = _FIRST
                await self._sight.changed(before)

    async def _read(self, log: ReplicaLog, *, over: bool) -> int:
        """Give what there is, and what comes until the container or the job ends; how many."""
        if over:
            return await self._given(log, follow=False)
        reading = asyncio.create_task(self._given(log, follow=True))
        try:
            while not reading.done():
                before = self._sight.changes
                if self._sight.over:
                    # What ended gives its last lines by itself; what goes on is left.
                    limit = 0.0 if log.running else _LAST
                    await asyncio.wait([reading], timeout=limit)
                    break
                changed = asyncio.create_task(self._sight.changed(before))
                await asyncio.wait([reading, changed], return_when=asyncio.FIRST_COMPLETED)
                await _cancelled(changed)
            return reading.result() if reading.done() else 1
        finally:
            await _cancelled(reading)

    async def _given(self, log: ReplicaLog, *, follow: bool) -> int:
        count = 0
        async with aclosing(log.read(follow=follow)) as lines:
            async for line in lines:
                await self._box.put(line)
                count += 1
        return count


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _tail(
    lines: AsyncGenerator[LogLine, None], tail: int | None
) -> AsyncGenerator[LogLine, None]:
    """The last ``tail`` of them, all for None."""
    async with aclosing(lines) as stream:
        if tail is None:
            async for line in stream:
                yield line
            return
        kept: deque[LogLine] = deque(maxlen=tail)
        async for line in stream:
            kept.append(line)
    for line in kept:
        yield line


async def _merged(
    readers: Sequence[AsyncGenerator[LogLine, None]],
) -> AsyncGenerator[LogLine, None]:
    """The lines of all, each reader's in its order, by their times between them."""
    async with AsyncExitStack() as stack:
        for reader in readers:
            stack.push_async_callback(reader.aclose)
        firsts = await asyncio.gather(*(_next(one) for one in readers))
        heap = [(line.time, place, line) for place, line in enumerate(firsts) if line is not None]
        heapq.heapify(heap)
        while heap:
            _, place, line = heap[0]
            yield line
            following = await _next(readers[place])
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following.time, place, following))


async def _next(reader: AsyncGenerator[LogLine, None]) -> LogLine | None:
    return await anext(reader, None)
