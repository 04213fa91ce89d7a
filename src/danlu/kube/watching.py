"""One watch: the changes of a kind of objects, from a version on, until the server ends it."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec

from danlu.errors import OutsideError
from danlu.kube.failures import ConnectionLost, error_of
from danlu.kube.resources import Resource
from danlu.kube.transport import Request, Transport
from danlu.kube.types import T, WatchEvent

__all__ = ["EVERYWHERE", "Selection", "watch"]

#: Seconds that a server may be late with ending a watch before it is taken for dead.
_LATE = 30.0


class Selection(msgspec.Struct, frozen=True):
    """Which objects of a kind: of one namespace or all, by selectors in Kubernetes' own syntax."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def query(self) -> dict[str, str]:
        """The selectors as parameters of a request."""
        return {"labelSelector": self.labels, "fieldSelector": self.fields}


EVERYWHERE = Selection()
"""All objects of a kind."""


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Any(msgspec.Struct):
    metadata: _Meta


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_event_decoder = msgspec.json.Decoder(_Event)
_any_decoder = msgspec.json.Decoder(_Any)


async def watch(
    transport: Transport,
    resource: Resource[T],
    selection: Selection,
    *,
    since: str,
    seconds: float,
    bookmarks: bool = True,
) -> AsyncGenerator[WatchEvent[T], None]:
    """Each change after the version ``since``, in order, exactly once.

    Ends when the server ends it, after ``seconds`` or before; a watch from the last event's
    version goes on where it was. An object that begins or ceases to fit the selection is ADDED or
    DELETED. Raises :class:`~danlu.kube.failures.Gone` where ``since`` is too old to go on from,
    :class:`ConnectionLost` for a connection that broke in the middle, and other
    :class:`ApiError` that the server put in the stream.
    """
    request = Request(
        method="GET",
        path=resource.path(namespace=selection.namespace),
        query={
            **selection.query(),
            "watch": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(max(1, int(seconds))),
            "allowWatchBookmarks": "true" if bookmarks else "",
        },
        what=f"watch {resource.label}",
        seconds=seconds + _LATE,
    )
    async with transport.stream(request) as response:
        _keep_alive(response)
        async for line in _lines(response):
            yield _event(resource, line, request.what)


def _event(resource: Resource[T], line: bytes, what: str) -> WatchEvent[T]:
    try:
        event = _event_decoder.decode(line)
        if event.type == "ERROR":
            raise error_of(500, bytes(event.object), what=what)
        version = _any_decoder.decode(event.object).metadata.resource_version
        if event.type == "BOOKMARK":
            return WatchEvent("BOOKMARK", version)
        # A copy: what the object keeps as raw must not keep the whole line.
        found = resource.decode(bytes(event.object))
    except msgspec.MsgspecError as error:
        raise OutsideError(f"{what}: an event cannot be read: {error}") from error
    kind: Any = event.type
    return WatchEvent(kind, version, found)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length; aiohttp's own reader of lines has a limit."""
    pending = bytearray()
    async for chunk in response.content.iter_any():
        end = chunk.rfind(b"\n")
        if end < 0:
            pending += chunk
            continue
        whole = bytes(pending) + chunk[:end]
        pending = bytearray(chunk[end + 1 :])
        for line in whole.split(b"\n"):
            if line:
                yield line
    if pending.strip():
        raise ConnectionLost("a watch broke off in the middle of an event")


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    """Notice within a minute that the other side is gone: an idle watch sends nothing by itself."""
    transport = response.connection.transport if response.connection else None
    raw = transport.get_extra_info("socket") if transport else None
    if raw is None:
        return
    with suppress(OSError, AttributeError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
