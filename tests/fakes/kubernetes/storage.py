"""Objects, their versions, and what changed: as etcd keeps it for a real server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.fakes.kubernetes.kinds import ResourceKind
from tests.fakes.kubernetes.status_errors import expired_error

__all__ = ["ObjectStorage", "StoredChange", "Subscriber"]

Object = dict[str, Any]
Place = tuple[str, str]
"""Namespace and name."""


@dataclass(slots=True)
class StoredChange:
    """One write: ``old`` is None for a creation, ``new`` for a removal (``old`` tells its end)."""

    version: int
    old: Object | None
    new: Object | None
    _bytes: dict[int, bytes] = field(default_factory=dict)

    def encode(self, obj: Object) -> bytes:
        """The bytes of its old or new object, made once for all who watch."""
        found = self._bytes.get(id(obj))
        if found is None:
            found = self._bytes[id(obj)] = msgspec.json.encode(obj)
        return found


Subscriber = Callable[[StoredChange | None], None]
"""Told of each change; None ends it."""


class ObjectStorage:
    """All objects by kind and place. Objects in it are never changed, only replaced.

    The last ``remembered`` changes of a kind can be watched from; older versions have expired.
    """

    def __init__(self, *, remembered: int = 20_000) -> None:
        self.version = 1
        self._history_limit = remembered
        self._objects: dict[str, dict[Place, Object]] = {}
        self._history: dict[str, deque[StoredChange]] = {}
        self._subscribers: dict[str, set[Subscriber]] = {}
        self._oldest_version: dict[str, int] = {}
        self._compacted = 0

    def of(self, kind: ResourceKind) -> dict[Place, Object]:
        """The objects of a kind, to be read only."""
        return self._objects.setdefault(kind.label, {})

    def everything(self) -> Iterator[tuple[str, Place, Object]]:
        """All objects with the label of their kind."""
        for label, objects in list(self._objects.items()):
            for place, obj in list(objects.items()):
                yield label, place, obj

    def write(self, kind: ResourceKind, place: Place, obj: Object) -> Object:
        """Put an object in, with the next version; gives it as it is kept."""
        objects = self.of(kind)
        old = objects.get(place)
        kept = self._with_next_version(obj)
        objects[place] = kept
        self._publish_change(kind, StoredChange(self.version, old, kept))
        return kept

    def remove(self, kind: ResourceKind, place: Place) -> Object:
        """Take an object out; gives its last state, whose version is that of the removal."""
        last = self._with_next_version(self.of(kind).pop(place))
        self._publish_change(kind, StoredChange(self.version, last, None))
        return last

    def drop(self, kind: ResourceKind) -> None:
        """Forget a kind and its history."""
        for subscriber in tuple(self._subscribers.pop(kind.label, ())):
            subscriber(None)
        self._objects.pop(kind.label, None)
        self._history.pop(kind.label, None)

    def compact(self) -> None:
        """Forget all changes until now: who goes on from an older version is told it expired."""
        self._compacted = self.version
        self._history.clear()

    def since(self, kind: ResourceKind, version: int) -> Iterator[StoredChange]:
        """The changes after ``version``; raises a refusal where they are forgotten."""
        self.check_not_expired(kind, version)
        for change in self._history.get(kind.label, ()):
            if change.version > version:
                yield change

    def check_not_expired(self, kind: ResourceKind, version: int) -> None:
        """Raise a refusal where what came after ``version`` is forgotten."""
        oldest = max(self._oldest_version.get(kind.label, 0), self._compacted)
        if version < oldest:
            raise expired_error(f"too old resource version: {version} ({oldest})")

    def subscribe(self, kind: ResourceKind, subscriber: Subscriber) -> Callable[[], None]:
        """Tell ``subscriber`` of changes from now on; the result ends that."""
        subscribers = self._subscribers.setdefault(kind.label, set())
        subscribers.add(subscriber)
        return lambda: subscribers.discard(subscriber)

    def end_watches(self) -> None:
        """End every watch, as a server that restarts does."""
        for subscribers in self._subscribers.values():
            for subscriber in tuple(subscribers):
                subscriber(None)

    @property
    def watchers(self) -> int:
        """How many watch now."""
        return sum(len(subscribers) for subscribers in self._subscribers.values())

    def _with_next_version(self, obj: Object) -> Object:
        self.version += 1
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}

    def _publish_change(self, kind: ResourceKind, change: StoredChange) -> None:
        history = self._history.setdefault(kind.label, deque())
        history.append(change)
        if len(history) > self._history_limit:
            self._oldest_version[kind.label] = history.popleft().version
        for subscriber in tuple(self._subscribers.get(kind.label, ())):
            subscriber(change)
