"""A least-recently-written cache."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """A mapping of at most ``max_size`` entries; adding more evicts the oldest."""

    def __init__(self, most: int = 4096) -> None:
        self._max_size = most
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """Return the value of ``key``, or None."""
        return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Store ``value`` as the newest entry."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._max_size:
            self._entries.popitem(last=False)

    def discard(self, key: K) -> None:
        """Remove ``key`` if present."""
        self._entries.pop(key, None)
