"""What was known lately: a mapping that forgets what was put first when it gets too large."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["Recent"]

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Holds the last ``most`` keys that were put."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._found: OrderedDict[K, V] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def get(self, key: K) -> V | None:
        """What was put last for ``key``."""
        return self._found.get(key)

    def put(self, key: K, value: V) -> None:
        """Hold it as the newest."""
        self._found[key] = value
        self._found.move_to_end(key)
        if len(self._found) > self._most:
            self._found.popitem(last=False)

    def forget(self, key: K) -> None:
        """Hold it no longer."""
        self._found.pop(key, None)
