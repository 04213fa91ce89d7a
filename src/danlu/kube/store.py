"""The objects of one kind as they were told last, found by key or by an index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from danlu.kube.types import Key, Object

__all__ = ["Index", "Store", "by_label", "by_owner"]

O = TypeVar("O", bound=Object)  # noqa: E741 - an object

Index = Callable[[Object], Iterable[str]]
"""Under which words an object is found."""


def by_owner(obj: Object) -> Iterable[str]:
    """Found by the uids of its owners."""
    return [owner.uid for owner in obj.metadata.owner_references]


def by_label(name: str) -> Index:
    """Found by namespace and the value of a label: ``space/value``."""

    def words(obj: Object) -> Iterable[str]:
        value = obj.metadata.labels.get(name)
        return () if value is None else (f"{obj.metadata.namespace}/{value}",)

    return words


class Store(Generic[O]):
    """Objects by key and by index. Only its informer writes; what it gives is never changed.

    One writer, and readers in the same event loop: between two awaits nothing changes.
    """

    def __init__(self, indexes: Mapping[str, Index] | None = None) -> None:
        self._objects: dict[Key, O] = {}
        self._indexes = dict(indexes or {})
        self._found: dict[str, dict[str, dict[Key, None]]] = {name: {} for name in self._indexes}

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[O]:
        return iter(tuple(self._objects.values()))

    def get(self, key: Key) -> O | None:
        """The object of a key, if it is there."""
        return self._objects.get(key)

    def by(self, index: str, word: str) -> list[O]:
        """The objects that an index has under a word, in the order in which they came."""
        return [self._objects[key] for key in self._found[index].get(word, ())]

    def keys(self) -> frozenset[Key]:
        """The keys of all."""
        return frozenset(self._objects)

    def add_indexes(self, indexes: Mapping[str, Index]) -> None:
        """Find what is there, and what comes, by these too; raises where a name is in use."""
        for name, index in indexes.items():
            if self._indexes.setdefault(name, index) is not index:
                raise ValueError(f"an index {name} is there already")
            self._found.setdefault(name, {})
        for key, obj in self._objects.items():
            self._file(key, obj)

    def put(self, obj: O) -> O | None:
        """Have an object; gives the one it replaces."""
        key = obj.key
        old = self._objects.get(key)
        if old is not None:
            self._unfile(key, old)
        self._objects[key] = obj
        self._file(key, obj)
        return old

    def drop(self, key: Key) -> O | None:
        """Have it no longer; gives what it was."""
        old = self._objects.pop(key, None)
        if old is not None:
            self._unfile(key, old)
        return old

    def _file(self, key: Key, obj: O) -> None:
        for name, index in self._indexes.items():
            for word in index(obj):
                self._found[name].setdefault(word, {})[key] = None

    def _unfile(self, key: Key, obj: O) -> None:
        for name, index in self._indexes.items():
            for word in index(obj):
                keys = self._found[name].get(word)
                if keys is not None:
                    keys.pop(key, None)
                    if not keys:
                        del self._found[name][word]
