"""The supervisor of one job: sees how it stands, has it decided what to do, and does that.

``python -m danlu.jobs.local.supervisor DIRECTORY READY LOCK [TIE]``, started by the keeper: READY,
LOCK and TIE are descriptors, of the pipe on which it says that it is there, of the job's lock and,
where the job is tied to it, of the process that submitted it. There is nothing it keeps beside the
files in the directory; when it dies the job is lost, and the keeper ends what it left.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import sys
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskGroup

from danlu.errors import DanluError
from danlu.jobs.local import heeding
from danlu.jobs.local.control import Orders, serve
from danlu.jobs.local.crew import Crew
from danlu.jobs.local.handed import FILES, RAISED, VALUE
from danlu.jobs.local.sampling import Sampler
from danlu.jobs.local.state import EventRecord, Place, Settings, Verdict, encode, now
from danlu.jobs.local.surroundings import LocalHelpers
from danlu.jobs.local.views import replica_views, state_of
from danlu.jobs.types import JobView, Progress, Submission
from danlu.training.conditions import with_condition
from danlu.training.decide import decide
from danlu.training.framework import Framework
from danlu.training.registry import framework_of
from danlu.training.types import (
    ConditionType,
    CreateReplica,
    Decision,
    DeleteJob,
    DeleteReplica,
    Event,
    Job,
)

__all__ = ["Supervisor", "main"]

_PR_SET_PDEATHSIG = 1
# Many things change at one time: they are looked at once, this (seconds) after the first.
_SETTLE = 0.005
_SEEN = 1.0
# Seconds that replicas have when nobody waits for them any more: all is over within ten.
_GRACE = 5.0
# Open files at once; replicas inherit it, and some programs walk through all there may be.
_FILES = 8192


class _Stop(msgspec.Struct, frozen=True):
    """An order to end the job: how long its programs have (seconds), and why it was given."""

    grace: float
    why: str = ""


class Supervisor:
    """Runs one job to its end; ``lock`` is the job's, open."""

    def __init__(
        self,
        place: Place,
        submission: Submission,
        settings: Settings,
        framework: Framework,
        *,
        lock: int,
    ) -> None:
        self._place = place
        self._submission = submission
        self._settings = settings
        self._framework = framework
        self._job = submission.job
        self._created = now()
        self._changed = anyio.Event()
        self._progress: Progress | None = None
        self._lock = lock
        self._stopping: _Stop | None = None
        self._leaving = False
        self._shown = b""
        self._helpers = LocalHelpers(place, submission, settings)
        self._crew = Crew(
            place, submission, settings, framework, changed=self.wake, helpers=self._helpers
        )
        self._sampler = Sampler(self._crew, interval=settings.sample)

    def wake(self) -> None:
        """Something changed."""
        self._changed.set()

    async def run(self, ready: int, tie: int | None = None) -> None:
        """Run the job; ``ready`` is told once orders are taken, ``tie`` is who submitted it."""
        async with AsyncExitStack() as stack, anyio.create_task_group() as group:
            stack.push_async_callback(self._crew.close)
            await stack.enter_async_context(self._helpers.serving(self._job, self._on_progress))
            self._crew.assemble(self._job)
            self._publish()
            await group.start(serve, self._place, self._orders())
            _say(ready, Verdict())
            group.start_soon(self._sampler.run, self._publish)
            self._heed(group, tie)
            await self._follow(group)
            group.cancel_scope.cancel()

    # -- deciding ---------------------------------------------------------------------------------

    async def _follow(self, group: TaskGroup) -> None:
        while not self._leaving:
            self._changed = anyio.Event()
            if heeding.is_removed(self._lock):
                await self._abandon()
                return
            if self._stopping is not None and not self._job.status.finished:
                await self._stop(self._stopping)
                continue
            decision = self._decide()
            if any(isinstance(one, DeleteJob) for one in decision.actions):
                shutil.rmtree(self._place.directory, ignore_errors=True)
                return
            if decision.status.finished:
                await self._finish(decision)
            else:
                self._carry_out(decision, group)
            self._publish()
            if decision.status.finished and decision.requeue_after is None:
                return
            await self._wait(decision.requeue_after, seen=decision.status.finished)

    def _decide(self) -> Decision:
        decision = decide(
            self._job,
            self._crew.observed(),
            self._framework,
            now=now(),
            pace=self._settings.pace,
        )
        self._job = msgspec.structs.replace(self._job, status=decision.status)
        return decision

    def _carry_out(self, decision: Decision, group: TaskGroup) -> None:
        for action in decision.actions:
            match action:
                case CreateReplica(replica, attempt):
                    self._crew.create(replica, attempt, group)
                case DeleteReplica(_, uid):
                    group.start_soon(self._crew.end, uid)
                case Event():
                    self._tell(action)
        self._crew.refresh_files()

    async def _finish(self, decision: Decision) -> None:
        """End all that is left: then what ended first is known, and the end may be told."""
        self._tell_all(decision)
        if self._crew.attempts():
            await self._crew.end_all()
            self._tell_all(self._decide())
            self._crew.forget()

    async def _wait(self, limit: float | None, *, seen: bool) -> None:
        """Wait for a change; a job that is over stays for as long as others need to see it."""
        if limit is not None and seen:
            limit = max(limit, _SEEN)
        with anyio.move_on_after(limit):
            await self._changed.wait()
            await anyio.sleep(_SETTLE)

    # -- telling ----------------------------------------------------------------------------------

    def _tell_all(self, decision: Decision) -> None:
        for action in decision.actions:
            if isinstance(action, Event):
                self._tell(action)

    def _tell(self, event: Event) -> None:
        if heeding.is_removed(self._lock):
            return
        self._place.append_event(EventRecord(now(), event.type, event.reason, event.message))

    def _on_progress(self, progress: Progress) -> None:
        self._progress = progress
        self._publish()

    def _publish(self) -> None:
        view = self._view()
        shown = encode(view)
        if shown != self._shown and not heeding.is_removed(self._lock):
            self._shown = shown
            self._place.write_view(view)

    def _view(self) -> JobView:
        latest = self._crew.latest
        return JobView(
            name=self._job.name,
            kind=self._job.kind,
            framework=self._framework.name,
            state=state_of(self._job, latest),
            status=self._job.status,
            replicas=replica_views(self._job, latest, self._sampler.used),
            progress=self._progress,
            warnings=(*self._crew.warnings(), *self._helpers.warnings()),
            created=self._created,
            directory=str(self._submission.directory),
            labels=self._submission.labels,
        )

    # -- orders -----------------------------------------------------------------------------------

    def _orders(self) -> Orders:
        return Orders(
            job=lambda: self._job,
            crew=self._crew,
            change=self._change,
            stop=self._order_stop,
            leave=self._order_leave,
        )

    def _change(self, job: Job) -> None:
        self._job = msgspec.structs.replace(job, status=self._job.status)
        self._crew.assemble(self._job)
        self.wake()

    def _order_stop(self, grace: float, why: str = "") -> None:
        self._stopping = _Stop(grace, why)
        self.wake()

    def _order_leave(self) -> None:
        self._leaving = True
        self.wake()

    async def _stop(self, order: _Stop) -> None:
        await self._crew.end_all(grace=order.grace)
        self._crew.forget()
        time, status = now(), self._job.status
        why = f": {order.why}" if order.why else ""
        reason, message = f"{self._job.kind}Stopped", f"{self._job.name} was stopped{why}."
        conditions = with_condition(
            status.conditions, ConditionType.FAILED, reason=reason, message=message, now=time
        )
        status = msgspec.structs.replace(status, conditions=conditions, completion_time=time)
        self._job = msgspec.structs.replace(self._job, status=status)
        self._tell(Event("Normal", reason, message))

    # -- what ends it from outside ----------------------------------------------------------------

    def _heed(self, group: TaskGroup, tie: int | None) -> None:
        stop = self._order_stop
        group.start_soon(heeding.signals, partial(stop, self._settings.grace))
        group.start_soon(heeding.removal, self._lock, self.wake)
        if tie is not None:
            grace = min(self._settings.grace, _GRACE)
            group.start_soon(heeding.submitter, tie, partial(stop, grace))

    async def _abandon(self) -> None:
        """Somebody removed the job's directory: nothing of it is to be told any more."""
        await self._crew.end_all(grace=min(self._settings.grace, _GRACE))
        self._crew.forget()
        # Something may have been written since; or it is another job's by now.
        if not self._place.lock.exists():
            shutil.rmtree(self._place.directory, ignore_errors=True)


def _say(ready: int, verdict: Verdict) -> None:
    with suppress(BrokenPipeError):
        os.write(ready, encode(verdict))
    os.close(ready)


def _open_more() -> None:
    """Allow for many replicas: each has a few pipes and descriptors here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main(directory: str, ready: int, lock: int, tie: int | None = None) -> None:
    """Supervise the job in ``directory``."""
    for descriptor in (ready, lock, *(() if tie is None else (tie,))):
        os.set_inheritable(descriptor, False)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # Where a replica submitted the job these are that replica's.
    for name in (FILES, VALUE, RAISED):
        os.environ.pop(name, None)
    _open_more()
    place = Place(Path(directory))
    try:
        place.name_supervisor()
        submission, settings = place.read_submission(), place.read_settings()
        framework = framework_of(submission.job.kind)
        if submission.images:
            LocalHelpers.enter(settings)
        supervisor = Supervisor(place, submission, settings, framework, lock=lock)
    except DanluError as error:
        _say(ready, Verdict(error.message, error.hint, error.exit_code))
        sys.exit(error.exit_code)
    anyio.run(supervisor.run, ready, tie)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
