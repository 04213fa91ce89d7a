"""What a controller did that its cache does not show yet (client-go's ControllerExpectations).

A controller that created three pods must not look at a cache in which they are missing and create
three more. It registers what it expects before each write, its event handlers report what they
observe, and until both agree the object is not reconciled.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from danlu.kube.clock import REAL_CLOCK, Clock

K = TypeVar("K", bound=Hashable)
#: After this time an event was probably missed, and reconciling is better than waiting.
_TIMEOUT_SECONDS = 300.0


@dataclass(slots=True)
class _ExpectationSet:
    since: float
    creations: set[str] = field(default_factory=set)
    deletions: set[str] = field(default_factory=set)


class Expectations(Generic[K]):
    """Expected creations (by name) and deletions (by uid) of each key.

    client-go counts them; naming them means that objects which others create or delete are never
    mistaken for the expected ones, and that observing an object twice does no harm.
    """

    def __init__(self, *, clock: Clock = REAL_CLOCK, timeout: float = _TIMEOUT_SECONDS) -> None:
        self._clock = clock
        self._timeout = timeout
        self._pending: dict[K, _ExpectationSet] = {}

    def __len__(self) -> int:
        """Return the number of keys with open expectations."""
        return len(self._pending)

    def expect_creation(self, key: K, names: Iterable[str]) -> None:
        """Expect objects of these names to appear; call it before creating them."""
        self._get_or_create(key).creations.update(names)

    def expect_deletion(self, key: K, uids: Iterable[str]) -> None:
        """Expect objects of these uids to disappear; call it before deleting them."""
        self._get_or_create(key).deletions.update(uids)

    def observe_creation(self, key: K, name: str) -> None:
        """Stop expecting an object: it was seen, or creating it failed."""
        if (expected := self._pending.get(key)) is not None:
            expected.creations.discard(name)
            self._drop_if_empty(key, expected)

    def observe_deletion(self, key: K, uid: str) -> None:
        """Stop expecting a deletion: it was seen, or deleting the object failed."""
        if (expected := self._pending.get(key)) is not None:
            expected.deletions.discard(uid)
            self._drop_if_empty(key, expected)

    def has_pending(self, key: K) -> bool:
        """Return whether the cache does not show everything yet and nothing has timed out."""
        expected = self._pending.get(key)
        if expected is None:
            return False
        # An event that never comes must not block the key for ever (client-go:
        # ExpectationsTimeout).
        if self._clock.monotonic() - expected.since >= self._timeout:
            del self._pending[key]
            return False
        return True

    def forget(self, key: K) -> None:
        """Drop the expectations of a key that is no longer reconciled."""
        self._pending.pop(key, None)

    def _get_or_create(self, key: K) -> _ExpectationSet:
        now = self._clock.monotonic()
        expected = self._pending.setdefault(key, _ExpectationSet(now))
        # Every write starts the timeout again, as in client-go's SetExpectations.
        expected.since = now
        return expected

    def _drop_if_empty(self, key: K, expected: _ExpectationSet) -> None:
        if not expected.creations and not expected.deletions:
            del self._pending[key]
