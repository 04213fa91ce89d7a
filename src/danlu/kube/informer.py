"""A cache that follows a kind of objects: listed once, then watched, listed again when it must.

The loop is that of client-go's reflector (tools/cache/reflector.go): a paged list, a watch from its
version, a new watch from the last version when one ends, a new list when that version has been
forgotten or what came made no sense.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Generic

import anyio

from danlu.errors import DanluError, TemporaryError
from danlu.kube.backoff import Growing
from danlu.kube.client import EVERYWHERE, Client, Selection
from danlu.kube.clock import sleep, within
from danlu.kube.failures import Gone
from danlu.kube.resources import Resource
from danlu.kube.store import Index, O, Store
from danlu.kube.types import Key, WatchEvent

__all__ = ["Handler", "Informer"]

Handler = Callable[[O | None, O | None], object]
"""Told of each change: what was, what is. None before for a new object, after for one that ended.

It must not raise and cannot wait: it puts a key into a queue.
"""

_log = logging.getLogger(__name__)
_WATCH_SECONDS = 300.0
#: A watch that ended sooner than this without a word is not begun again at once.
_SHORT = 1.0
#: After so many failures in a row the version is doubted.
_PATIENCE = 5


class Informer(Generic[O]):
    """Follows the objects of a kind in ``store`` and tells handlers of every change.

    What it guarantees: after :meth:`wait_synced` the store holds all that was there when it began,
    and then every later state in order, though not every state between. Handlers hear of a change
    after the store has it; of an object whose deletion was missed (``old``, None), and of one that
    was replaced under its name the end and then the beginning. A handler that is added later
    hears first of all that is there.

    ``on_failure`` is told of what goes wrong; the informer goes on by itself.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[O],
        selection: Selection = EVERYWHERE,
        *,
        indexes: Mapping[str, Index] | None = None,
        chunk: int = 500,
        on_failure: Callable[[DanluError], object] | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.resource = resource
        self.selection = selection
        self.store: Store[O] = Store(indexes)
        self.lists = 0
        self.watches = 0
        self._client = client
        self._chunk = chunk
        self._handlers: list[Handler[O]] = []
        self._synced = anyio.Event()
        self._on_failure = on_failure or _ignore
        self._draw = draw
        self._version = ""
        self._failures = 0
        # client-go's: 0.8 s to 30 s, forgotten after two quiet minutes.
        self._backoff = Growing(0.8, 30.0, reset=120.0, clock=client.clock, draw=draw)

    @property
    def synced(self) -> bool:
        """Whether the first list has been told."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Wait until the first list has been told."""
        await self._synced.wait()

    def handle(self, handler: Handler[O]) -> None:
        """Tell ``handler`` of all that is there, and of every change from now on."""
        self._handlers.append(handler)
        for obj in self.store:
            handler(None, obj)

    async def run(self) -> None:
        """Follow until cancelled."""
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list()
                version = await self._watch(version)
            except DanluError as error:
                version = self._after(error, version)
                self._on_failure(error)
                await sleep(self._client.clock, self._pause(error))

    def _after(self, error: DanluError, version: str) -> str:
        """From where to go on: a broken connection does not make what is known untrue."""
        self._failures += 1
        # What fails again and again may fail because of the version.
        if isinstance(error, TemporaryError) and self._failures % _PATIENCE:
            if self._failures == 1:
                _log.info("%s: %s; trying again", self.resource.label, error)
            return self._version or version
        level = logging.INFO if isinstance(error, Gone) else logging.WARNING
        _log.log(level, "%s: %s; listing again", self.resource.label, error)
        return ""

    def _pause(self, error: DanluError) -> float:
        asked = getattr(error, "retry_after", 0.0)
        return max(self._backoff.next(), float(asked))

    async def _list(self) -> str:
        self.lists += 1
        self._version = ""
        seen: set[Key] = set()
        version = ""
        try:
            async for page in self._client.pages(self.resource, self.selection, chunk=self._chunk):
                version = page.version
                for obj in page.items:
                    seen.add(obj.key)
                    self._put(obj)
                # Decoding a page keeps the event loop busy: let others have their turn.
                await anyio.lowlevel.checkpoint()
        except Gone:
            version = await self._list_whole(seen)
        for key in self.store.keys() - seen:
            self._tell(self.store.drop(key), None)
        self._version = version
        self._synced.set()
        return version

    async def _list_whole(self, seen: set[Key]) -> str:
        """In one part, where the list changes faster than its parts can be asked for."""
        page = await self._client.page(self.resource, self.selection, limit=0)
        seen.clear()
        for obj in page.items:
            seen.add(obj.key)
            self._put(obj)
        return page.version

    async def _watch(self, version: str) -> str:
        clock = self._client.clock
        # Spread out, so that all watches do not end, and begin again, together.
        seconds = _WATCH_SECONDS * (1.0 + self._draw())
        begun, events = clock.monotonic(), 0
        self._version = version
        self.watches += 1
        watching = self._client.watch(self.resource, self.selection, since=version, seconds=seconds)
        with within(clock, seconds + 60.0):
            async with aclosing(watching) as stream:
                async for event in stream:
                    events += 1
                    self._failures = 0
                    self._version = event.version
                    self._apply(event)
        if not events and clock.monotonic() - begun < _SHORT:
            await sleep(clock, self._backoff.next())
        return self._version

    def _apply(self, event: WatchEvent[O]) -> None:
        if event.object is None:
            return
        if event.kind == "DELETED":
            if self.store.drop(event.object.key) is not None:
                # Its last state is that of the event: the store's may be older.
                self._tell(event.object, None)
        else:
            self._put(event.object)

    def _put(self, obj: O) -> None:
        old = self.store.get(obj.key)
        if old is not None and old.metadata.uid != obj.metadata.uid:
            self.store.drop(obj.key)
            self._tell(old, None)
            old = None
        if old is not None and old.metadata.resource_version == obj.metadata.resource_version:
            return
        self.store.put(obj)
        self._tell(old, obj)

    def _tell(self, old: O | None, new: O | None) -> None:
        for handler in self._handlers:
            handler(old, new)


def _ignore(_: DanluError) -> None:
    pass
