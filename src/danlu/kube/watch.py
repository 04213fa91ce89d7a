"""List options, and one watch: the changes from a version on, until the server ends it."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec

from danlu.errors import OutsideError
from danlu.kube.errors import ConnectionLost, error_from_response
from danlu.kube.resources import Resource
from danlu.kube.transport import ApiRequest, Transport
from danlu.kube.types import T, WatchEvent

#: How many seconds late a server may end a watch before the connection counts as dead.
_GRACE_SECONDS = 30.0


class ListOptions(msgspec.Struct, frozen=True):
    """Selects objects by namespace (empty for all), label selector and field selector."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def query(self) -> dict[str, str]:
        """Return the selectors as query parameters."""
        return {"labelSelector": self.labels, "fieldSelector": self.fields}


ALL_OBJECTS = ListOptions()


class _PartialMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _PartialObject(msgspec.Struct):
    metadata: _PartialMeta


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


_event_decoder = msgspec.json.Decoder(_RawEvent)
_partial_decoder = msgspec.json.Decoder(_PartialObject)


async def watch_objects(
    transport: Transport,
    resource: Resource[T],
    options: ListOptions,
    *,
    since: str,
    seconds: float,
    bookmarks: bool = True,
) -> AsyncGenerator[WatchEvent[T], None]:
    """Yield each change after the version ``since``, in order and exactly once.

    The server ends the watch after at most ``seconds``; a new watch from the version of the last
    event continues it. An object that starts or stops matching the selectors is ADDED or DELETED.

    Raises:
        Gone: ``since`` has expired.
        ConnectionLost: The connection broke in the middle of an event.
        ApiError: The server sent an error in the stream.
    """
    request = ApiRequest(
        method="GET",
        path=resource.path(namespace=options.namespace),
        query={
            **options.query(),
            "watch": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(max(1, int(seconds))),
            "allowWatchBookmarks": "true" if bookmarks else "",
        },
        what=f"watch {resource.display_name}",
        # Only for a server that does not keep to timeoutSeconds.
        seconds=seconds + _GRACE_SECONDS,
    )
    async with transport.stream(request) as response:
        _enable_keepalive(response)
        async for line in _read_lines(response):
            yield _decode_event(resource, line, request.what)


def _decode_event(resource: Resource[T], line: bytes, what: str) -> WatchEvent[T]:
    try:
        event = _event_decoder.decode(line)
        if event.type == "ERROR":
            raise error_from_response(500, bytes(event.object), what=what)
        version = _partial_decoder.decode(event.object).metadata.resource_version
        if event.type == "BOOKMARK":
            return WatchEvent("BOOKMARK", version)
        # Copy the bytes: a Raw field of the object would otherwise keep the whole line alive.
        obj = resource.decode(bytes(event.object))
    except msgspec.MsgspecError as error:
        raise OutsideError(f"{what}: invalid event: {error}") from error
    kind: Any = event.type
    return WatchEvent(kind, version, obj)


async def _read_lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield lines of any length; aiohttp's ``readline`` has a limit."""
    pending = bytearray()
    async for chunk in response.content.iter_any():
        end = chunk.rfind(b"\n")
        if end < 0:
            pending += chunk
            continue
        complete = bytes(pending) + chunk[:end]
        pending = bytearray(chunk[end + 1 :])
        for line in complete.split(b"\n"):
            if line:
                yield line
    if pending.strip():
        raise ConnectionLost("a watch was cut off in the middle of an event")


def _enable_keepalive(response: aiohttp.ClientResponse) -> None:
    """Detect a dead peer within a minute; an idle watch receives nothing that would show it."""
    transport = response.connection.transport if response.connection else None
    raw = transport.get_extra_info("socket") if transport else None
    if raw is None:
        return
    with suppress(OSError, AttributeError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
