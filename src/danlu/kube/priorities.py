"""A priority queue in which every priority has a share, so that nothing waits forever.

The vocabulary is that of controller-runtime's priority queue (pkg/controller/priorityqueue), which
always returns the highest priority first, however long the others have waited.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

DEFAULT_PRIORITY = 0
LOW_PRIORITY = -100
"""The priority of work that can wait, such as objects that are only new to a cache
(handler.LowPriority)."""
MAX_PASSED_OVER = 4
"""After this many items of higher priorities in a row, an item of a lower priority is next."""


class ReadyItems(Generic[K]):
    """Items by priority, and in order of arrival within a priority.

    A level that was passed over :data:`MAX_PASSED_OVER` times is next, so that of two levels that
    both have items, every fifth item is of the lower one.
    """

    def __init__(self) -> None:
        self._levels: dict[int, OrderedDict[K, None]] = {}
        self._priorities: dict[K, int] = {}
        # By level, the number of items of higher levels that were taken since its last one.
        self._passed_over: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._priorities)

    def __contains__(self, item: object) -> bool:
        return item in self._priorities

    @property
    def lengths(self) -> dict[int, int]:
        """The number of items by priority, for every priority that ever had one."""
        return {priority: len(level) for priority, level in sorted(self._levels.items())}

    def put(self, item: K, priority: int = DEFAULT_PRIORITY) -> None:
        """Add an item, or raise its priority, which moves it to the end of the new level.

        An item that already has the same or a higher priority keeps its place.
        """
        before = self._priorities.get(item)
        if before is not None:
            if before >= priority:
                return
            del self._levels[before][item]
        self._priorities[item] = priority
        self._levels.setdefault(priority, OrderedDict())[item] = None

    def remove(self, item: K) -> bool:
        """Remove an item; return whether it was present."""
        priority = self._priorities.pop(item, None)
        if priority is None:
            return False
        del self._levels[priority][item]
        return True

    def has(self, min_priority: int | None = None) -> bool:
        """Return whether there is an item of at least ``min_priority``."""
        return bool(self._ready_levels(min_priority))

    def take(self, min_priority: int | None = None) -> tuple[K, int]:
        """Remove and return the next item of at least ``min_priority``, with its priority.

        Raises :class:`LookupError` if there is none.
        """
        levels = self._ready_levels(min_priority)
        if not levels:
            raise LookupError(f"no item of priority {min_priority} or higher")
        passed_over = self._passed_over
        starved = [level for level in levels if passed_over.get(level, 0) >= MAX_PASSED_OVER]
        chosen = max(starved, key=lambda level: (passed_over[level], level), default=levels[0])
        for level in self._ready_levels(None):
            if level < chosen:
                passed_over[level] = passed_over.get(level, 0) + 1
        passed_over[chosen] = 0
        item, _ = self._levels[chosen].popitem(last=False)
        del self._priorities[item]
        return item, chosen

    def _ready_levels(self, min_priority: int | None) -> list[int]:
        """Return the priorities that have items, highest first."""
        return sorted(
            (
                priority
                for priority, level in self._levels.items()
                if level and (min_priority is None or priority >= min_priority)
            ),
            reverse=True,
        )
