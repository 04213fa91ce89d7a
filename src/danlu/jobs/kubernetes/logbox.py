"""Lines of logs on their way to who reads them slower than they come."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from typing import Protocol

from danlu.jobs.types import LogLine
from danlu.training.types import ReplicaId

__all__ = ["Box", "NewestLines"]


class Box(Protocol):
    """Takes lines and gives them; None is the end."""

    async def put(self, line: LogLine | None) -> None:
        """Put a line in; may wait until there is room."""

    async def get(self) -> LogLine | None:
        """The next line, in the order in which they came."""


class NewestLines:
    """Never waits for who reads: of each replica's lines that wait, the oldest are passed over.

    Of all replicas together about ``most`` wait, and as many again may be about to be read. The
    last lines of each are given in any case. ``count`` lines have come so far.
    """

    def __init__(self, most: int) -> None:
        self.count = 0
        self._most = most
        self._waiting: dict[ReplicaId, deque[tuple[int, LogLine]]] = {}
        self._given: deque[LogLine] = deque()
        self._changed = asyncio.Event()
        self._ended = False

    async def put(self, line: LogLine | None) -> None:
        """Put a line in, in place of the oldest of its replica where there is no room."""
        self._changed.set()
        if line is None:
            self._ended = True
            return
        self.count += 1
        waiting = self._waiting.setdefault(line.replica, deque())
        waiting.append((self.count, line))
        while len(waiting) > max(1, self._most // len(self._waiting)):
            waiting.popleft()

    async def get(self) -> LogLine | None:
        """The next line; None when the end was put in and all was given."""
        while not self._given:
            if self._waiting:
                self._take()
            elif self._ended:
                return None
            else:
                self._changed.clear()
                await self._changed.wait()
        return self._given.popleft()

    def _take(self) -> None:
        """All that waits, at once: to look for the next among many replicas takes time."""
        self._given.extend(line for _, line in heapq.merge(*self._waiting.values()))
        self._waiting.clear()
