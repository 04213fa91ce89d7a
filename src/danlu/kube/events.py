"""Events for people: what happened to an object, told once and counted after that.

As client-go's correlator does (tools/record/events_cache.go): the same event again raises the count
of the first; more than ten that differ only in words, within ten minutes, become one that says so;
one object has at most 25 at once, and then one in five minutes.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio

from danlu.errors import DanluError, TemporaryError
from danlu.kube.backoff import Growing
from danlu.kube.client import Client
from danlu.kube.clock import sleep
from danlu.kube.failures import AlreadyExists, NotFound
from danlu.kube.limits import TokenBucket
from danlu.kube.patches import merge_patch
from danlu.kube.resources import EVENTS, Resource
from danlu.kube.types import Object

__all__ = ["EventRecorder", "Reference", "reference_to"]

_log = logging.getLogger(__name__)
_SIMILAR = 10
_SIMILAR_SECONDS = 600.0
_BURST = 25
_RATE = 1.0 / 300.0
_REMEMBERED = 4096
_WAITING = 1000
#: Tries of one event (client-go's number), the first and the longest pause between two in seconds:
#: longer than an API server takes to start.
_TRIES, _FIRST, _LONGEST_PAUSE = 12, 0.2, 10.0
_LONGEST = 1024

Severity = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class Reference:
    """The object that an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    version: str = ""

    def document(self) -> dict[str, str]:
        """As an event names it (core/v1 ObjectReference)."""
        found = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "resourceVersion": self.version,
        }
        return {name: value for name, value in found.items() if value}


def reference_to(resource: Resource[Any], obj: Object) -> Reference:
    """The reference to an object of a kind."""
    meta = obj.metadata
    version, kind = resource.api_version, resource.kind
    return Reference(version, kind, meta.namespace, meta.name, meta.uid, meta.resource_version)


@dataclass(slots=True)
class _Told:
    """One event on the server, or on its way there."""

    about: Reference
    severity: str
    reason: str
    message: str
    name: str
    first: str
    last: str
    count: int = 0
    sent: bool = False
    waits: bool = False


@dataclass(slots=True)
class _Similar:
    messages: set[str] = field(default_factory=set)
    last: float = 0.0


_Key = tuple[Reference, str, str]


class EventRecorder:
    """Records events; :meth:`run` sends them in the background.

    Recording never waits and never fails: what cannot be sent in a dozen tries, over a minute and a
    half, and what comes while a thousand wait, is dropped.
    """

    def __init__(self, client: Client, component: str) -> None:
        self.dropped = 0
        self._client = client
        self._clock = client.clock
        self._component = component
        self._similar: OrderedDict[_Key, _Similar] = OrderedDict()
        self._told: OrderedDict[tuple[_Key, str], _Told] = OrderedDict()
        self._buckets: OrderedDict[Reference, TokenBucket] = OrderedDict()
        self._waiting: deque[_Told] = deque()
        self._changed = anyio.Event()
        self._idle = True
        self._count = 0

    def event(self, about: Reference, severity: Severity, reason: str, message: str) -> None:
        """Say what happened to an object: why in one CamelCase word, and what in words."""
        about = Reference(about.api_version, about.kind, about.namespace, about.name, about.uid)
        message = message if len(message) <= _LONGEST else f"{message[: _LONGEST - 1]}…"
        key, said = self._correlated((about, severity, reason), message)
        if not self._bucket(about).take():
            return
        if len(self._waiting) >= _WAITING:
            self.dropped += 1
            return
        told = self._counted(key, said)
        if not told.waits:
            told.waits = True
            self._waiting.append(told)
        self._changed.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            while self._waiting:
                self._idle = False
                await self._send(self._waiting.popleft())
            self._idle = True
            self._changed = anyio.Event()
            await self._changed.wait()

    @property
    def idle(self) -> bool:
        """Whether all that was recorded has been sent or dropped."""
        return self._idle and not self._waiting

    def _correlated(self, key: _Key, message: str) -> tuple[tuple[_Key, str], str]:
        now = self._clock.monotonic()
        similar = _recent(self._similar, key, _Similar)
        if now - similar.last > _SIMILAR_SECONDS:
            similar.messages.clear()
        similar.last = now
        similar.messages.add(message)
        if len(similar.messages) <= _SIMILAR:
            return (key, message), message
        # Only as many are kept as tell that there are too many.
        similar.messages.pop()
        return (key, ""), f"(combined from similar events): {message}"

    def _bucket(self, about: Reference) -> TokenBucket:
        found = self._buckets.get(about)
        if found is None:
            found = TokenBucket(_RATE, _BURST, clock=self._clock)
            self._buckets[about] = found
            _forget(self._buckets)
        self._buckets.move_to_end(about)
        return found

    def _counted(self, key: tuple[_Key, str], message: str) -> _Told:
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        told = self._told.get(key)
        if told is None:
            self._count += 1
            suffix = f"{int(self._clock.now().timestamp() * 1e6):x}{self._count % 4096:03x}"
            about, severity, reason = key[0]
            name = f"{about.name[:200]}.{suffix}"
            told = self._told[key] = _Told(about, severity, reason, message, name, now, now)
            _forget(self._told)
        self._told.move_to_end(key)
        told.count += 1
        told.last, told.message = now, message
        return told

    async def _send(self, told: _Told) -> None:
        told.waits = False
        pauses = Growing(_FIRST, _LONGEST_PAUSE, reset=float("inf"), clock=self._clock)
        for tried in range(1, _TRIES + 1):
            try:
                await self._write(told)
                return
            except TemporaryError as error:
                _log.info("event %s: %s", told.reason, error)
                if tried < _TRIES:
                    await sleep(self._clock, pauses.next())
            except DanluError as error:
                # A namespace that ends takes no events, for example.
                _log.info("event %s: %s", told.reason, error)
                break
        self.dropped += 1

    async def _write(self, told: _Told) -> None:
        namespace = told.about.namespace or "default"
        if told.sent:
            change = {"count": told.count, "lastTimestamp": told.last, "message": told.message}
            try:
                await self._client.patch(
                    EVENTS, told.name, merge_patch(change), namespace=namespace
                )
                return
            except NotFound:
                # The server forgets events after an hour: begin anew.
                told.first = told.last
        try:
            await self._client.create(EVENTS, EVENTS.document(self._fields(told, namespace)))
        except AlreadyExists:
            _log.debug("event %s arrived though its answer did not", told.reason)
        told.sent = True

    def _fields(self, told: _Told, namespace: str) -> Mapping[str, Any]:
        return {
            "metadata": {"name": told.name, "namespace": namespace},
            "involvedObject": told.about.document(),
            "type": told.severity,
            "reason": told.reason,
            "message": told.message,
            "count": told.count,
            "firstTimestamp": told.first,
            "lastTimestamp": told.last,
            "source": {"component": self._component},
            "reportingComponent": self._component,
        }


def _recent(table: OrderedDict[_Key, _Similar], key: _Key, make: type[_Similar]) -> _Similar:
    found = table.setdefault(key, make())
    table.move_to_end(key)
    _forget(table)
    return found


def _forget(table: OrderedDict[Any, Any]) -> None:
    while len(table) > _REMEMBERED:
        table.popitem(last=False)
