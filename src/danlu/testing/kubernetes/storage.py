"""Objects, their versions, and what changed: as etcd keeps it for a real server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from danlu.testing.kubernetes.kinds import Kind
from danlu.testing.kubernetes.refusals import expired

__all__ = ["Change", "Storage", "Subscriber"]

Object = dict[str, Any]
Place = tuple[str, str]
"""Namespace and name."""


@dataclass(slots=True)
class Change:
    """One write: ``old`` is None for a creation, ``new`` for a removal (``old`` tells its end)."""

    version: int
    old: Object | None
    new: Object | None
    _bytes: dict[int, bytes] = field(default_factory=dict)

    def encoded(self, obj: Object) -> bytes:
        """The bytes of its old or new object, made once for all who watch."""
        found = self._bytes.get(id(obj))
        if found is None:
            found = self._bytes[id(obj)] = msgspec.json.encode(obj)
        return found


Subscriber = Callable[[Change | None], None]
"""Told of each change; None ends it."""


class Storage:
    """All objects by kind and place. Objects in it are never changed, only replaced.

    The last ``remembered`` changes of a kind can be watched from; older versions have expired.
    """

    def __init__(self, *, remembered: int = 20_000) -> None:
        self.version = 1
        self._remembered = remembered
        self._objects: dict[str, dict[Place, Object]] = {}
        self._history: dict[str, deque[Change]] = {}
        self._subscribers: dict[str, set[Subscriber]] = {}
        self._forgotten: dict[str, int] = {}
        self._compacted = 0

    def of(self, kind: Kind) -> dict[Place, Object]:
        """The objects of a kind, to be read only."""
        return self._objects.setdefault(kind.label, {})

    def everything(self) -> Iterator[tuple[str, Place, Object]]:
        """All objects with the label of their kind."""
        for label, objects in list(self._objects.items()):
            for place, obj in list(objects.items()):
                yield label, place, obj

    def write(self, kind: Kind, place: Place, obj: Object) -> Object:
        """Put an object in, with the next version; gives it as it is kept."""
        objects = self.of(kind)
        old = objects.get(place)
        kept = self._next(obj)
        objects[place] = kept
        self._tell(kind, Change(self.version, old, kept))
        return kept

    def remove(self, kind: Kind, place: Place) -> Object:
        """Take an object out; gives its last state, whose version is that of the removal."""
        last = self._next(self.of(kind).pop(place))
        self._tell(kind, Change(self.version, last, None))
        return last

    def drop(self, kind: Kind) -> None:
        """Forget a kind and its history."""
        for subscriber in tuple(self._subscribers.pop(kind.label, ())):
            subscriber(None)
        self._objects.pop(kind.label, None)
        self._history.pop(kind.label, None)

    def compact(self) -> None:
        """Forget all changes until now: who goes on from an older version is told it expired."""
        self._compacted = self.version
        self._history.clear()

    def since(self, kind: Kind, version: int) -> Iterator[Change]:
        """The changes after ``version``; raises a refusal where they are forgotten."""
        self.not_expired(kind, version)
        for change in self._history.get(kind.label, ()):
            if change.version > version:
                yield change

    def not_expired(self, kind: Kind, version: int) -> None:
        """Raise a refusal where what came after ``version`` is forgotten."""
        oldest = max(self._forgotten.get(kind.label, 0), self._compacted)
        if version < oldest:
            raise expired(f"too old resource version: {version} ({oldest})")

    def subscribe(self, kind: Kind, subscriber: Subscriber) -> Callable[[], None]:
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
        return sum(len(one) for one in self._subscribers.values())

    def _next(self, obj: Object) -> Object:
        self.version += 1
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}

    def _tell(self, kind: Kind, change: Change) -> None:
        history = self._history.setdefault(kind.label, deque())
        history.append(change)
        if len(history) > self._remembered:
            self._forgotten[kind.label] = history.popleft().version
        for subscriber in tuple(self._subscribers.get(kind.label, ())):
            subscriber(change)
