"""Shared caches: an informer lists and watches a resource, its indexer holds the objects.

The loop is that of client-go's reflector (tools/cache/reflector.go): list in pages, watch from the
version of the list, watch again from the last version when a watch ends, and list again when that
version has expired or an event could not be decoded.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Generic, TypeVar

import anyio

from danlu.errors import DanluError, TemporaryError
from danlu.kube.client import Client
from danlu.kube.clock import move_on_after, sleep
from danlu.kube.errors import Gone
from danlu.kube.resources import Resource
from danlu.kube.types import Key, Object, WatchEvent
from danlu.kube.watch import ALL_OBJECTS, ListOptions
from danlu.util.backoff import ExponentialBackoff

O = TypeVar("O", bound=Object)  # noqa: E741 - an object

IndexFunc = Callable[[Object], Iterable[str]]
"""Returns the index values of an object (client-go's IndexFunc)."""

EventHandler = Callable[[O | None, O | None], object]
"""Called with the old and the new object of each change: old is None for a new object, new is None
for a deleted one. It must not raise or block: it adds a key to a queue."""

_log = logging.getLogger(__name__)
_WATCH_SECONDS = 300.0
#: A watch that ended sooner without an event is not repeated at once.
_MIN_WATCH_SECONDS = 1.0
#: After this many failures in a row the cause may be the version, so list again.
_RELIST_AFTER_FAILURES = 5


def index_by_owner(obj: Object) -> Iterable[str]:
    """Return the uids of the object's owners."""
    return [owner.uid for owner in obj.metadata.owner_references]


def index_by_label(name: str) -> IndexFunc:
    """Return an index function for a label; its values are ``NAMESPACE/VALUE``."""

    def get_values(obj: Object) -> Iterable[str]:
        value = obj.metadata.labels.get(name)
        return () if value is None else (f"{obj.metadata.namespace}/{value}",)

    return get_values


class Indexer(Generic[O]):
    """Objects by key and by index. Only the informer writes; the objects are immutable.

    Readers run in the same event loop, so nothing changes between two awaits.
    """

    def __init__(self, indexes: Mapping[str, IndexFunc] | None = None) -> None:
        self._objects: dict[Key, O] = {}
        self._index_funcs = dict(indexes or {})
        self._indices: dict[str, dict[str, dict[Key, None]]] = {
            name: {} for name in self._index_funcs
        }

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[O]:
        return iter(tuple(self._objects.values()))

    def get(self, key: Key) -> O | None:
        """Return the object of a key, or None."""
        return self._objects.get(key)

    def by_index(self, index: str, value: str) -> list[O]:
        """Return the objects with this index value, in the order in which they were added."""
        return [self._objects[key] for key in self._indices[index].get(value, ())]

    def keys(self) -> frozenset[Key]:
        """Return the keys of all objects."""
        return frozenset(self._objects)

    def add_indexes(self, indexes: Mapping[str, IndexFunc]) -> None:
        """Also index by these functions; raises :class:`ValueError` if a name is in use."""
        for name, index in indexes.items():
            if self._index_funcs.setdefault(name, index) is not index:
                raise ValueError(f"index {name} already exists")
            self._indices.setdefault(name, {})
        for key, obj in self._objects.items():
            self._add_to_indices(key, obj)

    def update(self, obj: O) -> O | None:
        """Add or replace an object; return the one it replaced."""
        key = obj.key
        old = self._objects.get(key)
        if old is not None:
            self._remove_from_indices(key, old)
        self._objects[key] = obj
        self._add_to_indices(key, obj)
        return old

    def delete(self, key: Key) -> O | None:
        """Remove an object and return it."""
        old = self._objects.pop(key, None)
        if old is not None:
            self._remove_from_indices(key, old)
        return old

    def _add_to_indices(self, key: Key, obj: O) -> None:
        for name, index in self._index_funcs.items():
            for value in index(obj):
                self._indices[name].setdefault(value, {})[key] = None

    def _remove_from_indices(self, key: Key, obj: O) -> None:
        for name, index in self._index_funcs.items():
            for value in index(obj):
                keys = self._indices[name].get(value)
                if keys is not None:
                    keys.pop(key, None)
                    if not keys:
                        del self._indices[name][value]


class Informer(Generic[O]):
    """Keeps ``indexer`` in sync with the server and calls event handlers for every change.

    Guarantees:

    * After :meth:`wait_for_cache_sync` the indexer holds all objects that existed when it started,
      and from then on every later state in order, though not every state in between.
    * Handlers are called after the indexer has the change. They are called with (old, None) for an
      object whose deletion was missed, and with a deletion and a creation if an object was replaced
      by another of the same name.
    * A handler that is added later is first called for all existing objects.

    ``on_failure`` is called with each error; the informer recovers by itself.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[O],
        options: ListOptions = ALL_OBJECTS,
        *,
        indexes: Mapping[str, IndexFunc] | None = None,
        chunk: int = 500,
        on_failure: Callable[[DanluError], object] | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.resource = resource
        self.options = options
        self.indexer: Indexer[O] = Indexer(indexes)
        self.list_count = 0
        self.watch_count = 0
        self._client = client
        self._chunk = chunk
        self._handlers: list[EventHandler[O]] = []
        self._synced = anyio.Event()
        self._on_failure = on_failure or _ignore_error
        self._draw = draw
        self._version = ""
        self._failures = 0
        # client-go's values: 0.8 s to 30 s and up to twice as long by chance, and from the start
        # again after two minutes without a failure.
        self._backoff = ExponentialBackoff(
            0.8, 60.0, reset=120.0, monotonic=client.clock.monotonic, draw=draw
        )

    @property
    def has_synced(self) -> bool:
        """Whether handlers were called for the whole first list."""
        return self._synced.is_set()

    async def wait_for_cache_sync(self) -> None:
        """Wait until :attr:`has_synced`."""
        await self._synced.wait()

    def add_event_handler(self, handler: EventHandler[O]) -> None:
        """Call ``handler`` for all existing objects, and for every change from now on."""
        self._handlers.append(handler)
        for obj in self.indexer:
            handler(None, obj)

    async def run(self) -> None:
        """List and watch until cancelled."""
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list_objects()
                version = await self._watch_changes(version)
            except DanluError as error:
                version = self._resume_version(error, version)
                self._on_failure(error)
                await sleep(self._client.clock, self._retry_delay(error))

    def _resume_version(self, error: DanluError, version: str) -> str:
        """Return the version to watch from after an error, or "" to list again."""
        self._failures += 1
        if isinstance(error, TemporaryError) and self._failures % _RELIST_AFTER_FAILURES:
            if self._failures == 1:
                _log.info("%s: %s; retrying", self.resource.display_name, error)
            # A broken connection does not invalidate what is already in the cache.
            return self._version or version
        level = logging.INFO if isinstance(error, Gone) else logging.WARNING
        _log.log(level, "%s: %s; listing again", self.resource.display_name, error)
        return ""

    def _retry_delay(self, error: DanluError) -> float:
        return max(self._backoff.next_delay(), float(getattr(error, "retry_after", 0.0)))

    async def _list_objects(self) -> str:
        self.list_count += 1
        self._version = ""
        seen: set[Key] = set()
        version = ""
        pages = self._client.list_pages(self.resource, self.options, chunk=self._chunk)
        try:
            async for page in pages:
                version = page.version
                for obj in page.items:
                    seen.add(obj.key)
                    self._upsert_object(obj)
                # Decoding a page occupies the event loop: let other tasks run in between.
                await anyio.lowlevel.checkpoint()
        except Gone:
            # The list changes faster than its pages can be requested, so ask for all of it.
            page = await self._client.list_page(self.resource, self.options, limit=0)
            version = page.version
            seen = {obj.key for obj in page.items}
            for obj in page.items:
                self._upsert_object(obj)
        for key in self.indexer.keys() - seen:
            self._notify_handlers(self.indexer.delete(key), None)
        self._version = version
        self._synced.set()
        return version

    async def _watch_changes(self, version: str) -> str:
        clock = self._client.clock
        # A random duration, so that the watches of all informers do not end at the same time.
        seconds = _WATCH_SECONDS * (1.0 + self._draw())
        begun, events = clock.monotonic(), 0
        self._version = version
        self.watch_count += 1
        watch = self._client.watch(self.resource, self.options, since=version, seconds=seconds)
        with move_on_after(clock, seconds + 60.0):
            async with aclosing(watch) as stream:
                async for event in stream:
                    events += 1
                    self._failures = 0
                    self._version = event.version
                    self._apply_event(event)
        if not events and clock.monotonic() - begun < _MIN_WATCH_SECONDS:
            await sleep(clock, self._backoff.next_delay())
        return self._version

    def _apply_event(self, event: WatchEvent[O]) -> None:
        if event.object is None:
            return
        if event.kind == "DELETED":
            if self.indexer.delete(event.object.key) is not None:
                # The event has the last state of the object, which the cache may not have seen.
                self._notify_handlers(event.object, None)
        else:
            self._upsert_object(event.object)

    def _upsert_object(self, obj: O) -> None:
        old = self.indexer.get(obj.key)
        if old is not None and old.metadata.uid != obj.metadata.uid:
            self.indexer.delete(obj.key)
            self._notify_handlers(old, None)
            old = None
        if old is not None and old.metadata.resource_version == obj.metadata.resource_version:
            return
        self.indexer.update(obj)
        self._notify_handlers(old, obj)

    def _notify_handlers(self, old: O | None, new: O | None) -> None:
        for handler in self._handlers:
            handler(old, new)


def _ignore_error(_: DanluError) -> None:
    pass
