"""Objects, their versions and their changes, as etcd stores them for a real server."""

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
    """A write: ``old`` is None for a creation, ``new`` for a removal; ``old`` is its last state."""

    version: int
    old: Object | None
    new: Object | None
    _bytes: dict[int, bytes] = field(default_factory=dict)

    def encode(self, obj: Object) -> bytes:
        """Return the old or new object as bytes, encoded once for all watches."""
        result = self._bytes.get(id(obj))
        if result is None:
            result = self._bytes[id(obj)] = msgspec.json.encode(obj)
        return result


Subscriber = Callable[[StoredChange | None], None]
"""Called with each change; None ends the subscription."""


class ObjectStorage:
    """All objects by kind and place. They are never changed in place, only replaced.

    Watches can start from the last ``remembered`` changes of a kind; older versions have expired.
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
        """Return the objects of a kind; read-only."""
        return self._objects.setdefault(kind.label, {})

    def everything(self) -> Iterator[tuple[str, Place, Object]]:
        """Return all objects with the label of their kind."""
        for label, objects in list(self._objects.items()):
            for directory, obj in list(objects.items()):
                yield label, directory, obj

    def write(self, kind: ResourceKind, place: Place, obj: Object) -> Object:
        """Store an object with the next version; return the stored object."""
        objects = self.of(kind)
        old = objects.get(place)
        kept = self._with_next_version(obj)
        objects[place] = kept
        self._publish_change(kind, StoredChange(self.version, old, kept))
        return kept

    def remove(self, kind: ResourceKind, place: Place) -> Object:
        """Remove an object; return its last state with the version of the removal."""
        last = self._with_next_version(self.of(kind).pop(place))
        self._publish_change(kind, StoredChange(self.version, last, None))
        return last

    def drop(self, kind: ResourceKind) -> None:
        """Remove a kind and its history."""
        for subscriber in tuple(self._subscribers.pop(kind.label, ())):
            subscriber(None)
        self._objects.pop(kind.label, None)
        self._history.pop(kind.label, None)

    def compact(self) -> None:
        """Drop the history: watches from older versions expire."""
        self._compacted = self.version
        self._history.clear()

    def since(self, kind: ResourceKind, version: int) -> Iterator[StoredChange]:
        """Return the changes after ``version``; raises StatusError if it has expired."""
        self.check_not_expired(kind, version)
        for change in self._history.get(kind.label, ()):
            if change.version > version:
                yield change

    def check_not_expired(self, kind: ResourceKind, version: int) -> None:
        """Raise StatusError if the changes after ``version`` were dropped."""
        oldest = max(self._oldest_version.get(kind.label, 0), self._compacted)
        if version < oldest:
            raise expired_error(f"too old resource version: {version} ({oldest})")

    def subscribe(self, kind: ResourceKind, subscriber: Subscriber) -> Callable[[], None]:
        """Send changes from now on to ``subscriber``; call the result to unsubscribe."""
        subscribers = self._subscribers.setdefault(kind.label, set())
        subscribers.add(subscriber)
        return lambda: subscribers.discard(subscriber)

    def end_watches(self) -> None:
        """End every watch, like a server that restarts."""
        for subscribers in self._subscribers.values():
            for subscriber in tuple(subscribers):
                subscriber(None)

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
