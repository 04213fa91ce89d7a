"""Watches: changes since a version, then further changes, as lines of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from tests.fakes.kubernetes.kinds import ResourceKind
from tests.fakes.kubernetes.selectors import Selector
from tests.fakes.kubernetes.status_errors import StatusError
from tests.fakes.kubernetes.storage import ObjectStorage, StoredChange

__all__ = ["WatchStream", "stream_lines"]

Object = dict[str, Any]


class WatchStream:
    """One watch; ``fits`` is the selector, ``namespace`` limits it unless empty.

    It receives every change from its creation on.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        kind: ResourceKind,
        *,
        namespace: str,
        fits: Selector,
        bookmarks: bool,
    ) -> None:
        self.kind = kind
        self.bookmarks = bookmarks
        self._storage = storage
        self._namespace = namespace
        self._fits = fits
        self._queue: asyncio.Queue[StoredChange | str | None] = asyncio.Queue()
        self._unsubscribe: Callable[[], None] | None = None

    def begin(self, since: str) -> list[bytes]:
        """Queue the initial events: all objects, or the changes since a version.

        Raises StatusError for a version that has expired.
        """
        first: list[bytes] = []
        if since in ("", "0"):
            first = [
                _render_line("ADDED", msgspec.json.encode(self._in_version(obj)))
                for _, obj in sorted(self._storage.of(self.kind).items())
                if self._selects(obj)
            ]
        else:
            output = (
                self._render_change(change) for change in self._storage.since(self.kind, int(since))
            )
            first = [line for line in output if line]
        self._unsubscribe = self._storage.subscribe(self.kind, self._queue.put_nowait)
        return first

    def end(self) -> None:
        """Unsubscribe."""
        if self._unsubscribe is not None:
            self._unsubscribe()

    def bookmark(self) -> None:
        """Queue a bookmark with the version of the last event."""
        if self.bookmarks:
            self._queue.put_nowait(str(self._storage.version))

    async def next(self) -> bytes | None:
        """Return the next line; None at the end."""
        while True:
            change = await self._queue.get()
            if change is None:
                return None
            if isinstance(change, str):
                return _render_line("BOOKMARK", msgspec.json.encode(self._render_bookmark(change)))
            if line := self._render_change(change):
                return line

    def _render_bookmark(self, version: str) -> Object:
        metadata = {"resourceVersion": version, "creationTimestamp": None}
        return {
            "kind": self.kind.kind,
            "apiVersion": self.kind.api_version,
            "metadata": metadata,
        }

    def _in_version(self, obj: Object) -> Object:
        return {**obj, "apiVersion": self.kind.api_version}

    def _selects(self, obj: Object) -> bool:
        inside = not self._namespace or obj["metadata"].get("namespace") == self._namespace
        return inside and self._fits(obj)

    def _render_change(self, change: StoredChange) -> bytes:
        """Return a line; empty if the change is invisible to the selector."""
        old, new = change.old, change.new
        before = old is not None and self._selects(old)
        after = new is not None and self._selects(new)
        if new is not None and after:
            return _render_line("MODIFIED" if before else "ADDED", self._encode_object(change, new))
        if old is None or not before:
            return b""
        if new is None:
            return _render_line("DELETED", self._encode_object(change, old))
        # It no longer matches: its last matching state, with the version of this change.
        metadata = {**old["metadata"], "resourceVersion": str(change.version)}
        return _render_line(
            "DELETED", msgspec.json.encode({**self._in_version(old), "metadata": metadata})
        )

    def _encode_object(self, change: StoredChange, obj: Object) -> bytes:
        if obj.get("apiVersion") == self.kind.api_version:
            return change.encode(obj)
        return msgspec.json.encode(self._in_version(obj))


async def stream_lines(watch: WatchStream, since: str, *, seconds: float) -> AsyncIterator[bytes]:
    """Yield the lines of a watch until ``seconds`` have passed or the server ends it.

    A watch that requested bookmarks gets one before the end, as from a real server.
    """
    try:
        first = watch.begin(since)
    except StatusError as refusal:
        yield _render_line("ERROR", msgspec.json.encode(refusal.to_status()))
        return
    loop = asyncio.get_running_loop()
    almost = loop.call_later(max(0.0, seconds - 1.0), watch.bookmark)
    try:
        for line in first:
            yield line
        async with asyncio.timeout(seconds):
            while (line_ := await watch.next()) is not None:
                yield line_
    except TimeoutError:
        return
    finally:
        almost.cancel()
        watch.end()


def _render_line(kind: str, obj: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + obj + b"}\n"
