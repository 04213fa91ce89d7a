"""A controller: keys from what changes, workers that reconcile them, outcomes that say what next.

The outcome of work is a value, and one function decides what comes of it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio

from danlu.errors import DanluError, TemporaryError
from danlu.kube.clock import REAL, within
from danlu.kube.failures import ApiError
from danlu.kube.informer import Informer
from danlu.kube.ratelimit import Limiter
from danlu.kube.store import O
from danlu.kube.types import Clock, Key, Object
from danlu.kube.workqueue import ShutDown, WorkQueue

__all__ = [
    "Again",
    "Controller",
    "Done",
    "Failed",
    "GaveUp",
    "Later",
    "Outcome",
    "Wait",
    "own_key",
    "owner_of",
]

_log = logging.getLogger(__name__)
_T = TypeVar("_T", bound=Object)


@dataclass(frozen=True, slots=True)
class Done:
    """All is as it should be; come again when something changes."""


@dataclass(frozen=True, slots=True)
class Later:
    """All is as it should be until then: come again in so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """It is too early to look: come again in so many seconds, with as many failures as before."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Again:
    """Something must be seen first: come again soon, later each time."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """It did not work; come again, later each time, but not before ``after`` seconds."""

    error: Exception
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class GaveUp:
    """It will not work until something changes."""

    error: Exception


Outcome = Done | Later | Wait | Again | Failed | GaveUp


def own_key(obj: Object) -> Iterable[Key]:
    """The key of the object itself."""
    return (obj.key,)


def owner_of(kind: str, api_group: str) -> Callable[[Object], Iterable[Key]]:
    """The key of the controlling owner, where it is of this kind and group (of any version)."""

    def keys(obj: Object) -> Iterable[Key]:
        owner = obj.metadata.controller
        group = owner.api_version.rpartition("/")[0] if owner is not None else ""
        if owner is None or owner.kind != kind or group != api_group:
            return ()
        return (Key(obj.metadata.namespace, owner.name),)

    return keys


class Controller(Generic[O]):
    """Reconciles keys with ``workers`` at once, the same key never twice at once.

    ``reconcile`` is given a key and gives an :data:`Outcome`; what it raises is one too: an error
    that is temporary, or that asks to read anew, is tried again, as is one of ours; an API error
    that will be the same again (Invalid, Forbidden) too, for what it depends on may change without
    a word, but each time later. A reconciliation that takes more than ``seconds`` is cancelled and
    has failed. ``meter`` is told of each: what came of it, and its seconds.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[Key], Awaitable[Outcome]],
        *,
        workers: int = 1,
        limiter: Limiter[Key] | None = None,
        clock: Clock = REAL,
        seconds: float = 600.0,
    ) -> None:
        self.name = name
        self.workers = workers
        self.active = 0
        self.queue: WorkQueue[Key] = WorkQueue(limiter=limiter, clock=clock)
        self.informers: list[Informer[Object]] = []
        self._reconcile = reconcile
        self._clock = clock
        self._seconds = seconds
        self.meter: Callable[[str, float], object] = _unmeasured

    def watch(
        self,
        informer: Informer[_T],
        keys: Callable[[_T], Iterable[Key]],
        *,
        when: Callable[[_T | None, _T | None], bool] | None = None,
    ) -> None:
        """Reconcile ``keys`` of what was and of what is, whenever an object changes.

        Of both, so that an object that changes owners brings both. ``when`` may say that a change
        is none to this controller.
        """

        def changed(old: _T | None, new: _T | None) -> None:
            if when is not None and not when(old, new):
                return
            for obj in (old, new):
                if obj is not None:
                    for key in keys(obj):
                        self.queue.add(key)

        informer.handle(changed)
        if informer not in self.informers:
            self.informers.append(informer)  # type: ignore[arg-type]

    async def run(self) -> None:
        """Work until the queue is shut down and empty; informers must be synced before."""
        async with anyio.create_task_group() as group:
            for _ in range(self.workers):
                group.start_soon(self._work)

    async def _work(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except ShutDown:
                return
            self.active += 1
            begun = self._clock.monotonic()
            try:
                outcome = await self._outcome(key)
                self._dispatch(key, outcome, self._clock.monotonic() - begun)
            finally:
                self.active -= 1
                self.queue.done(key)

    async def _outcome(self, key: Key) -> Outcome:
        with within(self._clock, self._seconds) as scope:
            try:
                return await self._reconcile(key)
            except DanluError as error:
                return Failed(error, _asked(error))
            except Exception as error:
                # A defect of ours in one object must not end the work on all others.
                _log.exception("%s: %s: %s", self.name, key, type(error).__name__)
                return Failed(error)
        assert scope.cancel_called
        return Failed(TimeoutError(f"took more than {self._seconds:.0f} s"))

    def _dispatch(self, key: Key, outcome: Outcome, seconds: float) -> None:
        """What comes of an outcome; the only place that decides it."""
        match outcome:
            case Done():
                self.queue.forget(key)
            case Later(after):
                self.queue.forget(key)
                self.queue.add_after(key, after)
            case Wait(after):
                self.queue.add_after(key, after)
            case Again():
                self.queue.add_limited(key)
            case Failed(error, after):
                _log.log(_level(error), "%s: %s: %s", self.name, key, error)
                if after:
                    self.queue.add_after(key, after)
                else:
                    self.queue.add_limited(key)
            case GaveUp(error):
                _log.error("%s: %s: %s; giving up until it changes", self.name, key, error)
                self.queue.forget(key)
        self.meter(_RESULTS[type(outcome)], seconds)


#: The words of controller-runtime's metric (pkg/internal/controller/metrics).
_RESULTS: dict[type, str] = {
    Done: "success",
    Later: "requeue_after",
    Wait: "requeue_after",
    Again: "requeue",
    Failed: "error",
    GaveUp: "terminal_error",
}


def _unmeasured(result: str, seconds: float) -> None:
    pass


def _asked(error: DanluError) -> float:
    return float(getattr(error, "retry_after", 0.0)) if isinstance(error, TemporaryError) else 0.0


def _level(error: Exception) -> int:
    expected = isinstance(error, TemporaryError) or (
        isinstance(error, ApiError) and error.repeat == "fresh"
    )
    return logging.INFO if expected else logging.ERROR
