"""A controller: maps changes to keys, reconciles them with workers, and requeues by the result.

The result of a reconciliation is a value, and :meth:`Controller._handle_result` alone decides what
happens next.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio

from danlu.errors import DanluError, TemporaryError
from danlu.kube.clock import REAL_CLOCK, Clock, move_on_after
from danlu.kube.errors import ApiError, Retry
from danlu.kube.informer import Informer, O
from danlu.kube.priorities import DEFAULT_PRIORITY
from danlu.kube.ratelimit import RateLimiter
from danlu.kube.types import Key, Object
from danlu.kube.workqueue import ShutDown, WorkQueue

_log = logging.getLogger(__name__)
_T = TypeVar("_T", bound=Object)


@dataclass(frozen=True, slots=True)
class Success:
    """Reconcile again when something changes."""


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Reconcile again after ``seconds``.

    Resets the failure count of the key. With ``keep_failures``, for a reconciliation that could not
    decide anything yet, the count stays, and so does the priority that the key had.
    """

    seconds: float
    priority: int = DEFAULT_PRIORITY
    keep_failures: bool = False


@dataclass(frozen=True, slots=True)
class Requeue:
    """Reconcile again with rate-limited back-off, without counting an error."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReconcileError:
    """Reconcile again with rate-limited back-off, or after ``after`` seconds if that is set."""

    error: Exception
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class TerminalError:
    """Do not retry until something changes (controller-runtime's TerminalError)."""

    error: Exception


ReconcileResult = Success | RequeueAfter | Requeue | ReconcileError | TerminalError

#: The values of the label `result` of controller-runtime (pkg/internal/controller/metrics).
_RESULT_LABELS: dict[type, str] = {
    Success: "success",
    RequeueAfter: "requeue_after",
    Requeue: "requeue",
    ReconcileError: "error",
    TerminalError: "terminal_error",
}


def map_to_self(obj: Object) -> Iterable[Key]:
    """Return the key of the object itself (handler.EnqueueRequestForObject)."""
    return (obj.key,)


def map_to_owner(kind: str, api_group: str) -> Callable[[Object], Iterable[Key]]:
    """Return a function that maps an object to its controller (handler.EnqueueRequestForOwner).

    Only if the controller is of this kind and group, in any version.
    """

    def get_keys(obj: Object) -> Iterable[Key]:
        owner = obj.metadata.controller
        if owner is None or owner.kind != kind:
            return ()
        if owner.api_version.rpartition("/")[0] != api_group:
            return ()
        return (Key(obj.metadata.namespace, owner.name),)

    return get_keys


class Controller(Generic[O]):
    """Reconciles keys with several workers, but never the same key twice at once.

    ``reconcile`` returns a :data:`ReconcileResult`. If it raises, the key is retried with
    rate-limited back-off: also after an API error such as Invalid or Forbidden, because its cause
    may be fixed without an event that the controller sees. A reconciliation that takes longer than
    ``seconds`` is cancelled and counts as an error.

    Args:
        workers: The number of keys that are reconciled at once.
        reserved: Additional workers that take only keys of at least the default priority, so that
            these do not wait for work of a low priority.

    ``meter`` is called with the result label and the duration of each reconciliation.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[Key], Awaitable[ReconcileResult]],
        *,
        workers: int = 1,
        reserved: int = 0,
        limiter: RateLimiter[Key] | None = None,
        clock: Clock = REAL_CLOCK,
        seconds: float = 600.0,
    ) -> None:
        self.name = name
        self.workers = workers + reserved
        self.active = 0
        self.queue: WorkQueue[Key] = WorkQueue(limiter=limiter, clock=clock)
        self.informers: list[Informer[Object]] = []
        self._reserved = reserved
        self._reconcile = reconcile
        self._clock = clock
        self._seconds = seconds
        self.meter: Callable[[str, float], object] = _ignore_measurement

    def watch(
        self,
        informer: Informer[_T],
        map_to_keys: Callable[[_T], Iterable[Key]],
        *,
        predicate: Callable[[_T | None, _T | None], bool] | None = None,
        priority: Callable[[_T | None, _T | None], int] | None = None,
        batch_seconds: float = 0.0,
    ) -> None:
        """Reconcile the keys of an object whenever it changes.

        Args:
            map_to_keys: Called for the old and the new object, so that an object that changes its
                owner triggers a reconciliation of both owners.
            predicate: Returns False for changes to ignore.
            priority: Returns the priority of a change.
            batch_seconds: If more keys are ready than there are workers, changes within this time
                are reconciled together.
        """

        def enqueue(old: _T | None, new: _T | None) -> None:
            if predicate is not None and not predicate(old, new):
                return
            level = DEFAULT_PRIORITY if priority is None else priority(old, new)
            delay = batch_seconds if len(self.queue) > self.workers else 0.0
            for obj in (old, new):
                if obj is not None:
                    for key in map_to_keys(obj):
                        self.queue.add_after(key, delay, priority=level)

        informer.add_event_handler(enqueue)
        if informer not in self.informers:
            self.informers.append(informer)  # type: ignore[arg-type]

    async def run(self) -> None:
        """Run the workers until the queue is shut down and empty; informers must have synced."""
        async with anyio.create_task_group() as group:
            for number in range(self.workers):
                reserved = number < self._reserved
                group.start_soon(self._run_worker, DEFAULT_PRIORITY if reserved else None)

    async def _run_worker(self, min_priority: int | None) -> None:
        while True:
            try:
                key, priority = await self.queue.get_with_priority(min_priority=min_priority)
            except ShutDown:
                return
            self.active += 1
            begun = self._clock.monotonic()
            try:
                result = await self._reconcile_key(key)
                self._handle_result(key, result, priority)
                self.meter(_RESULT_LABELS[type(result)], self._clock.monotonic() - begun)
            finally:
                self.active -= 1
                self.queue.done(key)

    async def _reconcile_key(self, key: Key) -> ReconcileResult:
        with move_on_after(self._clock, self._seconds) as scope:
            try:
                return await self._reconcile(key)
            except DanluError as error:
                return ReconcileError(error, _retry_after(error))
            except Exception as error:
                # A bug that one object triggers must not stop the work on all others.
                _log.exception("%s: %s: %s", self.name, key, type(error).__name__)
                return ReconcileError(error)
        assert scope.cancel_called
        return ReconcileError(TimeoutError(f"took more than {self._seconds:.0f} s"))

    def _handle_result(self, key: Key, result: ReconcileResult, priority: int) -> None:
        match result:
            case Success():
                self.queue.forget(key)
            case RequeueAfter(seconds, level, keep_failures):
                if not keep_failures:
                    self.queue.forget(key)
                self.queue.add_after(key, seconds, priority=priority if keep_failures else level)
            case Requeue():
                self.queue.add_rate_limited(key, priority=priority)
            case ReconcileError(error, after):
                _log.log(_log_level(error), "%s: %s: %s", self.name, key, error)
                if after:
                    self.queue.add_after(key, after, priority=priority)
                else:
                    self.queue.add_rate_limited(key, priority=priority)
            case TerminalError(error):
                _log.error("%s: %s: %s; not retrying until it changes", self.name, key, error)
                self.queue.forget(key)


def _ignore_measurement(result: str, seconds: float) -> None:
    pass


def _retry_after(error: DanluError) -> float:
    return float(getattr(error, "retry_after", 0.0)) if isinstance(error, TemporaryError) else 0.0


def _log_level(error: Exception) -> int:
    expected = isinstance(error, TemporaryError) or (
        isinstance(error, ApiError) and error.retry is Retry.REREAD
    )
    return logging.INFO if expected else logging.ERROR
