"""What a controller has done and its cache does not show yet (client-go, ControllerExpectations).

A controller that made three pods must not look at a cache in which they are missing and make three
more. It says what it expects, its handlers what they saw, and until both agree it waits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from danlu.kube.clock import REAL
from danlu.kube.types import Clock

__all__ = ["Expectations"]

K = TypeVar("K", bound=Hashable)
#: After so many seconds something was missed, and looking is better than waiting.
_TIMEOUT = 300.0


@dataclass(slots=True)
class _Expected:
    since: float
    creations: set[str] = field(default_factory=set)
    deletions: set[str] = field(default_factory=set)


class Expectations(Generic[K]):
    """Creations by name and deletions by uid that are to be seen, for each key.

    Named, not counted: what others make or delete is never taken for what was expected, and
    seeing a thing twice does no harm.
    """

    def __init__(self, *, clock: Clock = REAL, timeout: float = _TIMEOUT) -> None:
        self._clock = clock
        self._timeout = timeout
        self._expected: dict[K, _Expected] = {}

    def __len__(self) -> int:
        """How many keys wait for something."""
        return len(self._expected)

    def expect_creation(self, key: K, names: Iterable[str]) -> None:
        """Objects of these names will be seen; said before they are made."""
        self._of(key).creations.update(names)

    def expect_deletion(self, key: K, uids: Iterable[str]) -> None:
        """Objects of these uids will end; said before that is asked for."""
        self._of(key).deletions.update(uids)

    def created(self, key: K, name: str) -> None:
        """An object was seen, or could not be made."""
        if (found := self._expected.get(key)) is not None:
            found.creations.discard(name)
            self._settle(key, found)

    def deleted(self, key: K, uid: str) -> None:
        """An object's end was seen, or could not be had."""
        if (found := self._expected.get(key)) is not None:
            found.deletions.discard(uid)
            self._settle(key, found)

    def satisfied(self, key: K) -> bool:
        """Whether the cache shows all that was done, or it has been waited for long enough."""
        found = self._expected.get(key)
        if found is None:
            return True
        if self._clock.monotonic() - found.since >= self._timeout:
            del self._expected[key]
            return True
        return False

    def forget(self, key: K) -> None:
        """Nobody works on the key any more."""
        self._expected.pop(key, None)

    def _of(self, key: K) -> _Expected:
        now = self._clock.monotonic()
        found = self._expected.setdefault(key, _Expected(now))
        found.since = now
        return found

    def _settle(self, key: K, found: _Expected) -> None:
        if not found.creations and not found.deletions:
            del self._expected[key]
