"""Events: what happened to an object, sent once and then counted.

Aggregation follows client-go's correlator (tools/record/events_cache.go): an event that occurs
again raises the count of the first; more than ten events within ten minutes that differ only in the
message become one; an object has at most 25 events at once, and then one every five minutes.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio

from danlu.errors import DanluError, TemporaryError
from danlu.kube.client import Client
from danlu.kube.clock import sleep
from danlu.kube.errors import AlreadyExists, NotFound
from danlu.kube.patch import merge_patch
from danlu.kube.ratelimit import TokenBucket
from danlu.kube.resources import EVENTS, Resource
from danlu.kube.types import Object
from danlu.util.backoff import ExponentialBackoff

_log = logging.getLogger(__name__)
_MAX_SIMILAR = 10
_SIMILAR_SECONDS = 600.0
_BURST = 25
_RATE = 1.0 / 300.0
_CACHE_SIZE = 4096
#: Enough for the events of a few thousand jobs that start together; they are sent one by one.
_MAX_QUEUED = 20_000
#: client-go's number of tries; the delays add up to more than an API server takes to restart.
_MAX_TRIES, _FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 12, 0.2, 10.0
_MAX_MESSAGE_LENGTH = 1024
#: While the server is busy, pause after each event for a multiple of the time it took to send. The
#: pause is short because the server may become idle meanwhile.
_YIELD_FACTOR, _MAX_YIELD_SECONDS = 4.0, 0.5

Severity = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object that an event is about (core/v1 ObjectReference)."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    version: str = ""

    def to_manifest(self) -> dict[str, str]:
        """Return the reference as ``involvedObject``."""
        fields = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "resourceVersion": self.version,
        }
        return {name: value for name, value in fields.items() if value}


def get_reference(resource: Resource[Any], obj: Object) -> ObjectReference:
    """Return a reference to an object."""
    meta = obj.metadata
    version, kind = resource.api_version, resource.kind
    return ObjectReference(
        version, kind, meta.namespace, meta.name, meta.uid, meta.resource_version
    )


@dataclass(slots=True)
class _EventSeries:
    """An event on the server, or on its way there, with the number of its occurrences."""

    about: ObjectReference
    severity: Severity
    reason: str
    message: str
    name: str
    first: str
    last: str
    count: int = 0
    sent: bool = False
    queued: bool = False


@dataclass(slots=True)
class _AggregateRecord:
    """The messages of similar events (client-go's aggregateRecord)."""

    messages: set[str] = field(default_factory=set)
    last: float = 0.0


_Key = tuple[ObjectReference, Severity, str]


class EventRecorder:
    """Records events; :meth:`run` sends them in the background.

    Recording never waits and never fails. An event is dropped if it could not be sent in 12 tries,
    which take more than a minute, or if 20,000 others are queued.

    Args:
        component: The source of the events.
        busy: Returns whether others need the server more; events then take a fifth of the time of
            one connection.
    """

    def __init__(
        self, client: Client, component: str, *, busy: Callable[[], bool] = lambda: False
    ) -> None:
        self.dropped = 0
        self._busy = busy
        self._draining = False
        self._client = client
        self._clock = client.clock
        self._component = component
        self._aggregates: OrderedDict[_Key, _AggregateRecord] = OrderedDict()
        self._series: OrderedDict[tuple[_Key, str], _EventSeries] = OrderedDict()
        self._buckets: OrderedDict[ObjectReference, TokenBucket] = OrderedDict()
        self._queue: deque[_EventSeries] = deque()
        self._changed = anyio.Event()
        self._idle = anyio.Event()
        self._idle.set()
        self._count = 0

    def event(self, about: ObjectReference, severity: Severity, reason: str, message: str) -> None:
        """Record an event, as client-go's ``EventRecorder.Event``.

        Args:
            reason: A CamelCase word, such as ``SuccessfulCreatePod``.
        """
        about, message = _without_version(about), _truncate_message(message)
        key, message = self._correlate_event((about, severity, reason), message)
        if not self._get_bucket(about).take():
            return
        if len(self._queue) >= _MAX_QUEUED:
            self.dropped += 1
            return
        series = self._series.get(key)
        if series is None:
            now = self._format_now()
            name = self._new_name(about)
            series = _EventSeries(about, severity, reason, message, name, now, now)
            self._series[key] = series
            _evict_oldest(self._series)
        self._series.move_to_end(key)
        series.count += 1
        series.last, series.message = self._format_now(), message
        self._enqueue_series(series)

    async def run(self) -> None:
        """Send events until cancelled."""
        while True:
            while self._queue:
                series = self._queue.popleft()
                begun = self._clock.monotonic()
                await self._send_with_retries(series)
                if self._queue and self._busy() and not self._draining:
                    elapsed = self._clock.monotonic() - begun
                    await sleep(self._clock, min(_MAX_YIELD_SECONDS, _YIELD_FACTOR * elapsed))
            self._idle.set()
            self._changed = anyio.Event()
            await self._changed.wait()

    async def drain(self) -> None:
        """Wait until all events have been sent or dropped; needs :meth:`run` to be running."""
        self._draining = True
        await self._idle.wait()

    @property
    def idle(self) -> bool:
        """Whether all events have been sent or dropped."""
        return self._idle.is_set()

    def _enqueue_series(self, series: _EventSeries) -> None:
        if not series.queued:
            series.queued = True
            self._queue.append(series)
        if self._idle.is_set():
            self._idle = anyio.Event()
        self._changed.set()

    def _new_name(self, about: ObjectReference) -> str:
        self._count += 1
        suffix = f"{int(self._clock.now().timestamp() * 1e6):x}{self._count % 4096:03x}"
        return f"{about.name[:200]}.{suffix}"

    def _format_now(self) -> str:
        return self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _correlate_event(self, key: _Key, message: str) -> tuple[tuple[_Key, str], str]:
        """Return the key under which an event is counted, and its message."""
        now = self._clock.monotonic()
        aggregate = self._aggregates.get(key, _AggregateRecord())
        messages = aggregate.messages if now - aggregate.last <= _SIMILAR_SECONDS else set()
        combined = len(messages | {message}) > _MAX_SIMILAR
        # Once there are too many messages, more need not be stored to know that.
        messages = messages if combined else messages | {message}
        self._aggregates[key] = _AggregateRecord(messages, now)
        self._aggregates.move_to_end(key)
        _evict_oldest(self._aggregates)
        if combined:
            return (key, ""), f"(combined from similar events): {message}"
        return (key, message), message

    def _get_bucket(self, about: ObjectReference) -> TokenBucket:
        bucket = self._buckets.get(about)
        if bucket is None:
            bucket = self._buckets[about] = TokenBucket(_RATE, _BURST, clock=self._clock)
            _evict_oldest(self._buckets)
        self._buckets.move_to_end(about)
        return bucket

    async def _send_with_retries(self, series: _EventSeries) -> None:
        series.queued = False
        backoff = ExponentialBackoff(
            _FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS, monotonic=self._clock.monotonic
        )
        for tries in range(1, _MAX_TRIES + 1):
            try:
                await self._create_or_patch(series)
                return
            except TemporaryError as error:
                _log.info("event %s: %s", series.reason, error)
                if tries < _MAX_TRIES:
                    await sleep(self._clock, backoff.next_delay())
            except DanluError as error:
                # For example, a namespace that is being deleted accepts no events.
                _log.info("event %s: %s", series.reason, error)
                break
        self.dropped += 1

    async def _create_or_patch(self, series: _EventSeries) -> None:
        namespace = series.about.namespace or "default"
        if series.sent:
            try:
                await self._patch_count(series, namespace)
                return
            except NotFound:
                # The server keeps events for an hour: start a new series.
                series.first = series.last
        manifest = EVENTS.to_manifest(self._event_fields(series, namespace))
        try:
            await self._client.create(EVENTS, manifest)
        except AlreadyExists:
            # The response to an earlier try was lost.
            if series.count > 1:
                await self._patch_count(series, namespace)
        series.sent = True

    async def _patch_count(self, series: _EventSeries, namespace: str) -> None:
        change = {
            "count": series.count,
            "lastTimestamp": series.last,
            "message": series.message,
        }
        await self._client.patch(EVENTS, series.name, merge_patch(change), namespace=namespace)

    def _event_fields(self, series: _EventSeries, namespace: str) -> Mapping[str, Any]:
        return {
            "metadata": {"name": series.name, "namespace": namespace},
            "involvedObject": series.about.to_manifest(),
            "type": series.severity,
            "reason": series.reason,
            "message": series.message,
            "count": series.count,
            "firstTimestamp": series.first,
            "lastTimestamp": series.last,
            "source": {"component": self._component},
            "reportingComponent": self._component,
        }


def _without_version(about: ObjectReference) -> ObjectReference:
    return ObjectReference(about.api_version, about.kind, about.namespace, about.name, about.uid)


def _truncate_message(message: str) -> str:
    if len(message) <= _MAX_MESSAGE_LENGTH:
        return message
    return f"{message[: _MAX_MESSAGE_LENGTH - 1]}…"


def _evict_oldest(table: OrderedDict[Any, Any]) -> None:
    while len(table) > _CACHE_SIZE:
        table.popitem(last=False)
