"""Reconcile one training job: decode it, decide, write its status, apply the actions.

The rules of jobs are in :mod:`danlu.training`; nothing here judges a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from danlu.kube.clock import Clock
from danlu.kube.controller import (
    ReconcileResult,
    Requeue,
    RequeueAfter,
    Success,
    TerminalError,
)
from danlu.kube.errors import ConnectionLost
from danlu.kube.events import EventRecorder, get_reference
from danlu.kube.expectations import Expectations
from danlu.kube.informer import Indexer
from danlu.kube.priorities import LOW_PRIORITY
from danlu.kube.types import Key
from danlu.operator.apply import FAILED_CREATE_REASONS, DecisionApplier, ReconcileContext
from danlu.operator.controller_ref import ControllerRefManager
from danlu.operator.decoding import JobDecoder, observe_pods
from danlu.operator.job_formats import (
    RUNTIME_NOT_SUPPORTED,
    MissingRuntime,
    UnsupportedRuntime,
)
from danlu.operator.owned_objects import NameConflict
from danlu.operator.status import DeletedPods, StatusCache, StatusWriter
from danlu.operator.types import JobObject
from danlu.training.conditions import set_condition
from danlu.training.decide import decide
from danlu.training.document import ManifestError
from danlu.training.framework import Framework
from danlu.training.registry import choose_variant
from danlu.training.types import ConditionType, Event, Job, JobStatus, RestartBackoff

#: The timeout of expectations.
_EXPECTATION_TIMEOUT = 300.0
#: The upper limit of a delay, so that a jump of the wall clock is noticed.
_MAX_REQUEUE_SECONDS = 600.0
_STALE_CACHE_SECONDS = 5.0
#: Runtimes are not watched: a job that is created before its runtime is rare.
_MISSING_RUNTIME_SECONDS = 10.0
#: Often the conflicting object is being deleted, so only the third conflict is recorded.
_REPORT_CONFLICT_AT = 3
#: A name conflict is retried with back-off 13 times, which takes 41 seconds, then every minute: if
#: the other object has no label of a job, the operator does not see its deletion.
_MAX_FAST_CONFLICTS, _CONFLICT_SECONDS = 13, 60.0
#: A reconciliation takes 20 to 30 µs per replica, and each event of a thousand pods would trigger
#: one, so large jobs are reconciled at most once per 0.1 ms and pod.
_LARGE_JOB = 100
_REST_SECONDS_PER_POD = 1e-4
_DEFAULT_BACKOFF = RestartBackoff()


_StatusWrite = Callable[[], Awaitable[float | None]]
"""Writes the decided status."""


@dataclass(frozen=True, kw_only=True)
class Reconciler:
    """Reconciles the jobs of one kind by key; never call it twice at once with the same key.

    A restart of the process loses no state that matters: everything remembered here bridges the
    time until the cache shows it.
    """

    framework: Framework
    jobs: Indexer[JobObject]
    applier: DecisionApplier
    controller_refs: ControllerRefManager
    deleted_pods: DeletedPods
    decoder: JobDecoder
    status_cache: StatusCache
    status_writer: StatusWriter
    recorder: EventRecorder
    expectations: Expectations[str]
    clock: Clock
    backoff: RestartBackoff = _DEFAULT_BACKOFF
    #: By uid of the job, the number of name conflicts in a row.
    name_conflicts: Counter[str] = field(default_factory=Counter)
    #: By uid of a large job, when it may be reconciled next.
    next_allowed: dict[str, float] = field(default_factory=dict)

    async def __call__(self, key: Key) -> ReconcileResult:
        """Reconcile the job of a key."""
        job_object = self.jobs.get(key)
        if job_object is None:
            return Success()
        try:
            return await self._reconcile(job_object)
        finally:
            # If the job was deleted meanwhile, its deletion handler ran before this wrote state.
            current = self.jobs.get(key)
            if current is None or current.metadata.uid != job_object.metadata.uid:
                self.forget(job_object.metadata.uid)

    def should_reconcile(self, old: JobObject | None, new: JobObject | None) -> bool:
        """Return False if the change of a job is the status that was just written; a predicate."""
        return new is None or not self.status_cache.is_own_write(new.metadata)

    def forget(self, uid: str) -> None:
        """Forget a job that no longer exists."""
        self.decoder.forget(uid)
        self.status_cache.forget(uid)
        self.deleted_pods.clear(uid)
        self.expectations.forget(uid)
        self.applier.dependents.forget(uid)
        self.name_conflicts.pop(uid, None)
        self.next_allowed.pop(uid, None)

    async def _reconcile(self, job_object: JobObject) -> ReconcileResult:
        uid = job_object.metadata.uid
        if self.expectations.has_pending(uid):
            return RequeueAfter(_EXPECTATION_TIMEOUT, keep_failures=True)
        wait = self.next_allowed.get(uid, 0.0) - self.clock.monotonic()
        if wait > 0:
            return RequeueAfter(wait, keep_failures=True)
        try:
            job = await self.decoder.decode(job_object)
        except ManifestError as error:
            return await self._handle_invalid(job_object, error)
        except MissingRuntime as error:
            self._record_warning(job_object, "TrainJobResourcesCreationFailed", error.message)
            return RequeueAfter(_MISSING_RUNTIME_SECONDS, keep_failures=True)
        except NameConflict as error:
            return self._handle_name_conflict(job_object, error)
        if job.deleting or job.run_policy.managed_by not in ("", self.framework.manager):
            return Success()
        version, status = self.status_cache.latest(job_object.metadata, job.status)
        job = msgspec.structs.replace(job, status=status)
        if not status.finished and await self._is_cache_stale(job):
            return RequeueAfter(_STALE_CACHE_SECONDS, keep_failures=True)
        return await self._decide_and_apply(job_object, job, version)

    async def _is_cache_stale(self, job: Job) -> bool:
        """Return whether the cache is about to show more, which triggers a reconciliation."""
        if await self.controller_refs.claim(job):
            return True
        pods = self.applier.pods.owned_by(job.uid)
        return await self.deleted_pods.is_cache_stale(job, pods)

    async def _decide_and_apply(
        self, job_object: JobObject, job: Job, version: str
    ) -> ReconcileResult:
        now = self.clock.now()
        pods = self.applier.pods.owned_by(job.uid)
        if len(pods) >= _LARGE_JOB:
            self.next_allowed[job.uid] = self.clock.monotonic() + _REST_SECONDS_PER_POD * len(pods)
        framework = choose_variant(self.framework, job)
        observed = observe_pods(pods, framework)
        decision = decide(job, observed, framework, now=now, backoff=self.backoff)
        context = ReconcileContext(
            framework=framework,
            job_object=job_object,
            job=msgspec.structs.replace(job, status=decision.status),
            pods=pods,
            observed=observed,
            decision=decision,
        )
        write = partial(
            self.status_writer.write,
            job_object,
            job.status,
            decision.status,
            decoded=job,
            over=version,
            now=now,
        )
        try:
            wait: float | None = None
            if _is_first_status(job.status, decision.status):
                await self._apply_before_status(context, write)
            else:
                wait = await self._write_status_and_apply(context, write)
        except NameConflict as error:
            return self._handle_name_conflict(job_object, error)
        self.name_conflicts.pop(job.uid, None)
        return _next_reconcile(wait, decision.requeue_after)

    async def _write_status_and_apply(
        self, context: ReconcileContext, write: _StatusWrite
    ) -> float | None:
        """Write the status, record the events, apply the actions, in this order.

        If the process is killed before the status is written, its successor decides the same again;
        afterwards events may be lost, as those of Kubernetes.
        """
        try:
            wait = await write()
        except ConnectionLost:
            # It may have been written; then the decision is not repeated.
            self._record_events(context)
            raise
        self.deleted_pods.clear(context.job.uid)
        self._record_events(context)
        await self.applier.apply(context)
        return wait

    def _record_events(self, context: ReconcileContext) -> None:
        about = get_reference(self.applier.resource, context.job_object)
        for event in context.decision.actions:
            # Successful exits are left out: the job's status shows them, and a job of a thousand
            # replicas would store a thousand events.
            if isinstance(event, Event) and event.exit_code != 0:
                self.recorder.event(about, event.type, event.reason, event.message)

    async def _apply_before_status(self, context: ReconcileContext, write: _StatusWrite) -> None:
        """Create the first pods of a job and leave its first status to the next reconciliation.

        The status is empty so far, so without it the decision would be the same, and one write per
        job is saved. If no pods were created, nothing triggers another reconciliation, so the
        status is written now.
        """
        created = False
        try:
            created = await self.applier.apply(context)
        finally:
            if not created:
                await write()

    def _handle_name_conflict(self, job_object: JobObject, error: NameConflict) -> ReconcileResult:
        uid = job_object.metadata.uid
        self.name_conflicts[uid] += 1
        if self.name_conflicts[uid] == _REPORT_CONFLICT_AT:
            reason = FAILED_CREATE_REASONS.get(error.kind, "FailedCreate")
            self._record_warning(job_object, reason, f"Error creating: {error}")
        if self.name_conflicts[uid] > _MAX_FAST_CONFLICTS:
            return RequeueAfter(_CONFLICT_SECONDS, keep_failures=True)
        return Requeue(str(error))

    async def _handle_invalid(self, job_object: JobObject, error: ManifestError) -> ReconcileResult:
        """Fail a job whose manifest is invalid; one that has already started keeps running."""
        deleting = job_object.metadata.deletion_timestamp is not None
        if deleting or self.decoder.is_managed_by_other(job_object):
            return Success()
        unsupported = isinstance(error, UnsupportedRuntime)
        reason = RUNTIME_NOT_SUPPORTED if unsupported else f"{self.framework.kind}FailedValidation"
        message = "; ".join([error.message, *error.details])
        try:
            version, status = self.status_cache.latest(
                job_object.metadata, self.decoder.decode_status(job_object)
            )
        except ManifestError as unreadable:
            return TerminalError(unreadable)
        if status.finished:
            return Success()
        self._record_warning(job_object, reason, message)
        if status.start_time is not None:
            return TerminalError(error)
        now = self.clock.now()
        failed = set_condition(
            status, ConditionType.FAILED, reason=reason, message=message, now=now
        )
        failed = msgspec.structs.replace(failed, completion_time=now)
        await self.status_writer.write(job_object, status, failed, over=version, now=now)
        return Success()

    def _record_warning(self, job_object: JobObject, reason: str, message: str) -> None:
        about = get_reference(self.applier.resource, job_object)
        self.recorder.event(about, "Warning", reason, message)


def _is_first_status(old: JobStatus, new: JobStatus) -> bool:
    """Return whether a status says nothing but that the job was created."""
    types = [condition.type for condition in new.conditions]
    return old == JobStatus() and types == [ConditionType.CREATED] and not new.records


def _next_reconcile(wait: float | None, requeue_after: float | None) -> ReconcileResult:
    """Return when to reconcile again: to write a status that was put off, or as decided."""
    if requeue_after is None:
        return Success() if wait is None else RequeueAfter(wait, LOW_PRIORITY)
    delays = [seconds for seconds in (wait, requeue_after) if seconds is not None]
    return RequeueAfter(min(_MAX_REQUEUE_SECONDS, *delays))
