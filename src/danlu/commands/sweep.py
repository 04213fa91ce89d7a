"""Sweeps: the same job at many points, a few of them side by side, and the best of them named.

Each point is a job of its own, which ``danlu jobs`` knows as any other. A point that fails does
not end the others; what cannot be submitted at all does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from danlu.commands.jobreport import outcome
from danlu.commands.sweepreport import Measure, SweepReport, Trial
from danlu.commands.sweepspace import Point
from danlu.errors import DanluError

if TYPE_CHECKING:
    from danlu.jobs.types import Jobs, JobView, Submission
    from danlu.training.types import Job, ReplicaId

__all__ = ["Grid", "Proposal", "Proposals", "sweep"]

#: Seconds that replicas have when a sweep is interrupted: all must be over within five.
_GRACE = 3.5

Make = Callable[[int, Point], "Submission"]


class Proposal(Protocol):
    """A point that is to be tried."""

    @property
    def point(self) -> Point:
        """Its values."""

    async def report(self, value: float, *, step: int) -> bool:
        """Hear of a value on the way, at ``step`` percent; True where the trial is to be ended."""

    async def tell(self, trial: Trial) -> None:
        """Hear how it ended."""


class Proposals(Protocol):
    """Which points are tried: all of a grid, or what a study suggests."""

    @property
    def total(self) -> int:
        """How many there will be."""

    async def ask(self) -> Proposal | None:
        """The next one, None where there are no more."""


class _Fixed:
    """A point of a grid, which learns nothing."""

    def __init__(self, point: Point) -> None:
        self.point = point

    async def report(self, value: float, *, step: int) -> bool:
        return False

    async def tell(self, trial: Trial) -> None:
        pass


class Grid:
    """All points, in order."""

    def __init__(self, points: Iterable[Point]) -> None:
        points = tuple(points)
        self.total = len(points)
        self._left = iter(points)

    async def ask(self) -> Proposal | None:
        """The next of them."""
        point = next(self._left, None)
        return None if point is None else _Fixed(point)


async def sweep(
    make: Make,
    proposals: Proposals,
    *,
    jobs: Jobs,
    measure: Measure,
    leader: Callable[[Job], ReplicaId],
    parallel: int = 1,
    changed: Callable[[SweepReport], None] = lambda report: None,
) -> SweepReport:
    """Run a job for each point that ``proposals`` give, ``parallel`` at once at most.

    ``make`` gives the job of a number (from 1) and a point; ``leader`` is the replica whose log
    counts. ``changed`` hears of every change, and of every end. When it is cancelled, what runs is
    stopped. Raises what a submission that is refused raises, after the others were stopped.
    """
    return await _Sweep(make, proposals, jobs, measure, leader, changed).run(parallel)


class _Sweep:
    def __init__(
        self,
        make: Make,
        proposals: Proposals,
        jobs: Jobs,
        measure: Measure,
        leader: Callable[[Job], ReplicaId],
        changed: Callable[[SweepReport], None],
    ) -> None:
        self._make = make
        self._proposals = proposals
        self._jobs = jobs
        self._measure = measure
        self._leader = leader
        self._changed = changed
        self._trials: list[Trial] = []
        self._errors: list[DanluError] = []

    async def run(self, parallel: int) -> SweepReport:
        import anyio

        async with anyio.create_task_group() as group:

            async def work() -> None:
                try:
                    while (proposal := await self._proposals.ask()) is not None:
                        await self._try(proposal)
                except DanluError as error:
                    # Not through the group, which would wrap it.
                    self._errors.append(error)
                    group.cancel_scope.cancel()

            for _ in range(parallel):
                group.start_soon(work)
        if self._errors:
            raise self._errors[0]
        return self._report()

    async def _try(self, proposal: Proposal) -> None:
        number = len(self._trials) + 1
        submission = self._make(number, proposal.point)
        trial = Trial(number, proposal.point, submission.job.name)
        self._trials.append(trial)
        await self._submit(submission)
        try:
            self._note(trial)
            trial, view = await self._watched(trial, proposal)
            trial = await self._ended(trial, view, submission)
        except BaseException:
            trial = msgspec.structs.replace(trial, state="Stopped", reason="interrupted")
            await self._give_up(trial, proposal)
            raise
        await proposal.tell(self._note(trial))

    async def _submit(self, submission: Submission) -> None:
        import anyio

        # Whole or not at all: a job that nobody knows of could not be stopped.
        with anyio.CancelScope(shield=True):
            await self._jobs.submit(submission)

    async def _watched(self, trial: Trial, proposal: Proposal) -> tuple[Trial, JobView]:
        """The trial at its end with its last view; ``Pruned`` where it was given up."""
        last: JobView | None = None
        async for view in self._jobs.watch(trial.name):
            last = view
            if view.progress is None or view.progress == trial.progress:
                continue
            trial = self._note(msgspec.structs.replace(trial, progress=view.progress))
            if not view.finished and await self._hopeless(trial, proposal):
                trial = self._note(msgspec.structs.replace(trial, state="Pruned"))
                await self._stop(trial.name)
        return trial, last if last is not None else await self._jobs.view(trial.name)

    async def _hopeless(self, trial: Trial, proposal: Proposal) -> bool:
        progress = trial.progress
        if trial.state != "Running" or progress is None or progress.percentage is None:
            return False
        value = progress.metrics.get(self._measure.metric)
        return value is not None and await proposal.report(value, step=progress.percentage)

    async def _ended(self, trial: Trial, view: JobView, submission: Submission) -> Trial:
        told = await outcome(self._jobs, view)
        trial = msgspec.structs.replace(trial, seconds=told.seconds)
        if trial.state == "Pruned":
            return trial
        if not told.succeeded:
            who = f"{told.replica}: " if told.replica is not None else ""
            why = f"{who}{told.reason or told.message}"
            return msgspec.structs.replace(trial, state="Failed", reason=why)
        value = await self._value(trial, submission)
        return msgspec.structs.replace(trial, state="Succeeded", value=value)

    async def _value(self, trial: Trial, submission: Submission) -> float | None:
        if self._measure.pattern:
            leader = self._leader(submission.job)
            return await _last_match(self._jobs, trial.name, leader, self._measure.pattern)
        return trial.progress.metrics.get(self._measure.metric) if trial.progress else None

    async def _give_up(self, trial: Trial, proposal: Proposal) -> None:
        import anyio

        self._note(trial)
        with anyio.CancelScope(shield=True):
            await self._stop(trial.name)
            await proposal.tell(trial)

    async def _stop(self, name: str) -> None:
        import anyio

        # Somebody else may have removed it meanwhile.
        with anyio.move_on_after(_GRACE + 1.0), suppress(DanluError):
            await self._jobs.stop(name, grace=_GRACE)

    def _report(self) -> SweepReport:
        return SweepReport(self._measure, tuple(self._trials), self._proposals.total)

    def _note(self, trial: Trial) -> Trial:
        self._trials[trial.number - 1] = trial
        self._changed(self._report())
        return trial


async def _last_match(jobs: Jobs, name: str, leader: ReplicaId, pattern: str) -> float | None:
    """The number that the pattern found last in the leader's log."""
    expression = re.compile(pattern)
    text: str | None = None
    async for line in jobs.logs(name, replicas=[leader]):
        for match in expression.finditer(line.data.decode(errors="replace")):
            text = match[1] if expression.groups else match[0]
    try:
        value = float(text or "")
    except ValueError:
        return None
    # What diverged at last has no value, whatever it was before.
    return value if math.isfinite(value) else None
