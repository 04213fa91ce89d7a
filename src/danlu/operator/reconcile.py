"""One job brought to where it is to be: read, decided, told, carried out; no rule of jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from danlu.errors import TemporaryError
from danlu.kube.controller import Again, Done, GaveUp, Later, Outcome, Wait
from danlu.kube.expectations import Expectations
from danlu.kube.store import Store
from danlu.kube.types import Clock, Key
from danlu.operator.adopting import Adopter
from danlu.operator.carrying import Carrier, Task
from danlu.operator.observing import observed
from danlu.operator.reading import JobReader, managed_elsewhere, status_of
from danlu.operator.telling import EventTeller, StatusWriter
from danlu.operator.types import JobObject
from danlu.operator.untold import Untold
from danlu.operator.vanishing import Vanishing
from danlu.operator.writing import NameTaken
from danlu.operator.written import Written
from danlu.training.conditions import saying
from danlu.training.decide import decide
from danlu.training.framework import Framework
from danlu.training.manifest import ManifestError
from danlu.training.types import MANAGER, ConditionType, Event, Job, JobStatus, Pace

__all__ = ["Reconciler"]

#: What was expected and never came is looked for after so many seconds (Expectations' own).
_EXPECTED_SECONDS = 300.0
#: No wait is longer, so that a day that jumps is noticed.
_LONGEST = 600.0
_EARLY_SECONDS = 5.0
_TOLD_AT = 3
#: A name that another has is tried ever more seldom (13 tries take 41 seconds), then once a minute:
#: of what bears no label of a job the operator does not see the end.
_SOON, _NAME_SECONDS = 13, 60.0
#: A job of many is looked at as often as its size allows: a look costs 20 to 30 µs a replica, and
#: each of a thousand would ask for one.
_MANY = 100
_REST_SECONDS = 1e-4
_PACE = Pace()


@dataclass(frozen=True, kw_only=True)
class Reconciler:
    """Reconciles the jobs of one kind: given a key, it gives what is to come of it.

    The same key must not be given twice at once. Nothing is remembered that a restart would lose
    but what the cache is about to show, and events of a status whose write was not answered.
    """

    framework: Framework
    jobs: Store[JobObject]
    carrier: Carrier
    adopter: Adopter
    vanishing: Vanishing
    reader: JobReader
    written: Written
    writer: StatusWriter
    teller: EventTeller
    expectations: Expectations[str]
    clock: Clock
    pace: Pace = _PACE
    untold: Untold = field(default_factory=Untold)
    taken: Counter[str] = field(default_factory=Counter)
    resting: dict[str, float] = field(default_factory=dict)

    async def __call__(self, key: Key) -> Outcome:
        """Look at the job of a key once."""
        found = self.jobs.get(key)
        if found is None:
            return Done()
        try:
            return await self._look(found)
        finally:
            left = self.jobs.get(key)
            if left is None or left.metadata.uid != found.metadata.uid:
                self.forget(found.metadata.uid)

    def concerns(self, old: JobObject | None, new: JobObject | None) -> bool:
        """Whether a change of a job is more than the echo of what was written of it."""
        return new is None or not self.written.echoed(new.metadata)

    async def _look(self, found: JobObject) -> Outcome:
        uid = found.metadata.uid
        if not self.expectations.satisfied(uid):
            return Wait(_EXPECTED_SECONDS)
        rest = self.resting.get(uid, 0.0) - self.clock.monotonic()
        if rest > 0:
            return Wait(rest)
        try:
            job = self.reader.read(found)
        except ManifestError as error:
            return await self._refuse(found, error)
        if job.deleting or job.run_policy.managed_by not in ("", MANAGER):
            return Done()
        version, status = self.written.newest(found.metadata, job.status)
        job = msgspec.structs.replace(job, status=status)
        if not status.finished and await self._is_early(job):
            return Wait(_EARLY_SECONDS)
        return await self._decide(found, job, version)

    def forget(self, uid: str) -> None:
        """The job is no more."""
        self.reader.forget(uid)
        self.written.forget(uid)
        self.untold.forget(uid)
        self.vanishing.settled(uid)
        self.expectations.forget(uid)
        self.carrier.belongings.forget(uid)
        self.taken.pop(uid, None)
        self.resting.pop(uid, None)

    async def _is_early(self, job: Job) -> bool:
        """Whether the cache is going to show more, and to bring the job again."""
        if await self.adopter.settle(job):
            return True
        return await self.vanishing.behind(job, self.carrier.pods.of(job.uid))

    async def _decide(self, found: JobObject, job: Job, version: str) -> Outcome:
        now = self.clock.now()
        self.teller.decided(found, self.untold.told_by(job.uid, job.status))
        pods = self.carrier.pods.of(job.uid)
        if len(pods) >= _MANY:
            self.resting[job.uid] = self.clock.monotonic() + _REST_SECONDS * len(pods)
        seen = observed(pods, self.framework)
        decision = decide(job, seen, self.framework, now=now, pace=self.pace)
        decided = msgspec.structs.replace(job, status=decision.status)
        task = Task(found=found, job=decided, pods=pods, observed=seen, decision=decision)
        write = partial(
            self.writer.write, found, job.status, decision.status, over=version, now=now
        )
        try:
            wait = await self._carry_out(task, write, begins=_begins(job.status, decision.status))
        except NameTaken as error:
            return self._wait_for_name(found, error)
        self.taken.pop(job.uid, None)
        return _outcome(wait, decision.requeue_after)

    async def _carry_out(
        self, task: Task, write: Callable[[], Awaitable[float | None]], *, begins: bool
    ) -> float | None:
        """Write the status, then act: who dies between the two decides the same again.

        A job that only begins is told of with its pods, once these are seen, in one write: there
        is nothing in its status yet that would be decided otherwise without it.
        """
        if begins:
            made = False
            try:
                made = await self.carrier.carry_out(task)
            finally:
                if not made:
                    await write()
            return None
        events = [one for one in task.decision.actions if isinstance(one, Event)]
        try:
            wait = await write()
        except TemporaryError:
            self.untold.keep(task.job.uid, task.job.status, events)
            raise
        self.untold.forget(task.job.uid)
        self.vanishing.settled(task.job.uid)
        self.teller.decided(task.found, events)
        await self.carrier.carry_out(task)
        return wait

    def _wait_for_name(self, found: JobObject, error: NameTaken) -> Outcome:
        """What stands in the way is often about to go: it is told of the third time only."""
        self.taken[found.metadata.uid] += 1
        if self.taken[found.metadata.uid] == _TOLD_AT:
            self.teller.failed(found, f"FailedCreate{error.kind}", f"Error creating: {error}")
        if self.taken[found.metadata.uid] > _SOON:
            return Wait(_NAME_SECONDS)
        return Again(str(error))

    async def _refuse(self, found: JobObject, error: ManifestError) -> Outcome:
        """A job that is no valid manifest fails; one that has begun already is left as it is."""
        if found.metadata.deletion_timestamp is not None or managed_elsewhere(found):
            return Done()
        reason = f"{self.framework.kind}FailedValidation"
        message = "; ".join([error.message, *error.details])
        try:
            version, status = self.written.newest(found.metadata, status_of(found))
        except ManifestError as unreadable:
            return GaveUp(unreadable)
        if status.finished:
            return Done()
        self.teller.failed(found, reason, message)
        if status.start_time is not None:
            return GaveUp(error)
        await self._fail(found, status, reason=reason, message=message, over=version)
        return Done()

    async def _fail(
        self, found: JobObject, status: JobStatus, *, reason: str, message: str, over: str
    ) -> None:
        now = self.clock.now()
        failed = saying(status, ConditionType.FAILED, reason=reason, message=message, now=now)
        failed = msgspec.structs.replace(failed, completion_time=now)
        await self.writer.write(found, status, failed, over=over, now=now)


def _begins(old: JobStatus, new: JobStatus) -> bool:
    """Whether nothing is said of a job but that it was created and starts."""
    types = [one.type for one in new.conditions]
    return old == JobStatus() and types == [ConditionType.CREATED] and not new.records


def _outcome(*waits: float | None) -> Outcome:
    known = [one for one in waits if one is not None]
    return Later(min(_LONGEST, *known)) if known else Done()
