"""Run a sweep: the same job at many points, several at a time.

Each point is a separate job, visible to ``danlu jobs``. A point that fails does not stop the
others; one that cannot be submitted does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

import anyio
import msgspec

from danlu.errors import DanluError
from danlu.jobs.report import summarize_job
from danlu.jobs.types import JobBackend, JobView, Submission, longest_grace
from danlu.sweeps.metric_pattern import find_last_number
from danlu.sweeps.report import SweepObjective, SweepReport, SweepTrial
from danlu.sweeps.space import Point
from danlu.training.types import Job, ReplicaId
from danlu.util.sanitize import strip_control_sequences

#: How long to wait for a stopped job beyond its grace period, in seconds.
_STOP_MARGIN_SECONDS = 5.0

TrialFactory = Callable[[int, Point], "Submission"]


class PointProposal(Protocol):
    """A point to try. ``report`` and ``tell`` have the meaning of Optuna's."""

    @property
    def point(self) -> Point:
        """The values by axis name."""

    async def report(self, value: float, *, step: int) -> bool:
        """Report an intermediate value at ``step`` percent; return True to prune the trial."""

    async def tell(self, trial: SweepTrial) -> None:
        """Report how the trial ended."""


class PointSource(Protocol):
    """The points to try: a full grid, or the suggestions of a study."""

    @property
    def total(self) -> int:
        """The number of points."""

    async def ask(self) -> PointProposal | None:
        """Return the next point, None if there are no more."""


class _GridPoint:
    """A point of a grid, which ignores results."""

    def __init__(self, point: Point) -> None:
        self.point = point

    async def report(self, value: float, *, step: int) -> bool:
        return False

    async def tell(self, trial: SweepTrial) -> None:
        pass


class GridSearch:
    """All points of a grid, in order."""

    def __init__(self, points: Iterable[Point]) -> None:
        points = tuple(points)
        self.total = len(points)
        self._left = iter(points)

    async def ask(self) -> PointProposal | None:
        """Return the next point."""
        point = next(self._left, None)
        return None if point is None else _GridPoint(point)


async def run_sweep(
    make: TrialFactory,
    proposals: PointSource,
    *,
    jobs: JobBackend,
    measure: SweepObjective,
    leader: Callable[[Job], ReplicaId],
    parallel: int = 1,
    changed: Callable[[SweepReport], object] = lambda report: None,
) -> SweepReport:
    """Run a job for each point of ``proposals``, at most ``parallel`` at a time.

    ``make`` returns the job for a number (from 1) and a point; ``leader`` returns the replica whose
    log is searched. ``changed`` is called after every change of a trial. Cancelling stops the
    running jobs. If a submission fails, the others are stopped and its error is raised.
    """
    return await _SweepRunner(make, proposals, jobs, measure, leader, changed).run(parallel)


class _SweepRunner:
    def __init__(
        self,
        make: TrialFactory,
        proposals: PointSource,
        jobs: JobBackend,
        measure: SweepObjective,
        leader: Callable[[Job], ReplicaId],
        changed: Callable[[SweepReport], object],
    ) -> None:
        self._make = make
        self._proposals = proposals
        self._jobs = jobs
        self._measure = measure
        self._leader = leader
        self._changed = changed
        self._trials: list[SweepTrial] = []
        self._errors: list[DanluError] = []

    async def run(self, parallel: int) -> SweepReport:
        async with anyio.create_task_group() as group:

            async def work() -> None:
                try:
                    while (proposal := await self._proposals.ask()) is not None:
                        await self._run_trial(proposal)
                except DanluError as error:
                    # The task group would wrap it in an exception group.
                    self._errors.append(error)
                    group.cancel_scope.cancel()

            for _ in range(parallel):
                group.start_soon(work)
        if self._errors:
            raise self._errors[0]
        return self._build_report()

    async def _run_trial(self, proposal: PointProposal) -> None:
        number = len(self._trials) + 1
        submission = self._make(number, proposal.point)
        trial = SweepTrial(number, proposal.point, submission.job.name)
        self._trials.append(trial)
        await self._submit_shielded(submission)
        try:
            self._record_trial(trial)
            trial, view = await self._watch_trial(trial, proposal, submission)
            trial = await self._finish_trial(trial, view, submission)
        except BaseException:
            trial = msgspec.structs.replace(trial, state="Stopped", reason="interrupted")
            await self._abort_trial(trial, proposal, submission)
            raise
        await proposal.tell(self._record_trial(trial))

    async def _submit_shielded(self, submission: Submission) -> None:
        # Shielded: a job that is submitted but unknown here could not be stopped.
        with anyio.CancelScope(shield=True):
            await self._jobs.submit(submission)

    async def _watch_trial(
        self, trial: SweepTrial, proposal: PointProposal, submission: Submission
    ) -> tuple[SweepTrial, JobView]:
        """Watch a trial to its end, and return it with its last view; it may be pruned."""
        last: JobView | None = None
        async for view in self._jobs.watch(trial.name):
            last = view
            if view.progress is None or view.progress == trial.progress:
                continue
            trial = self._record_trial(msgspec.structs.replace(trial, progress=view.progress))
            if not view.finished and await self._should_prune(trial, proposal):
                trial = self._record_trial(msgspec.structs.replace(trial, state="Pruned"))
                await self._stop_job(trial.name, submission.job)
        return trial, last if last is not None else await self._jobs.view(trial.name)

    async def _should_prune(self, trial: SweepTrial, proposal: PointProposal) -> bool:
        progress = trial.progress
        if trial.state != "Running" or progress is None or progress.percentage is None:
            return False
        value = progress.metrics.get(self._measure.metric)
        return value is not None and await proposal.report(value, step=progress.percentage)

    async def _finish_trial(
        self, trial: SweepTrial, view: JobView, submission: Submission
    ) -> SweepTrial:
        summary = await summarize_job(self._jobs, view)
        trial = msgspec.structs.replace(trial, seconds=summary.seconds)
        if trial.state == "Pruned":
            return trial
        if not summary.is_successful:
            replica = f"{summary.replica}: " if summary.replica is not None else ""
            reason = f"{replica}{summary.reason or summary.message}"
            return msgspec.structs.replace(trial, state="Failed", reason=reason)
        value = await self._read_metric(trial, submission)
        return msgspec.structs.replace(trial, state="Succeeded", value=value)

    async def _read_metric(self, trial: SweepTrial, submission: Submission) -> float | None:
        if self._measure.pattern:
            leader = self._leader(submission.job)
            return await read_last_match(self._jobs, trial.name, leader, self._measure.pattern)
        return trial.progress.metrics.get(self._measure.metric) if trial.progress else None

    async def _abort_trial(
        self, trial: SweepTrial, proposal: PointProposal, submission: Submission
    ) -> None:
        self._record_trial(trial)
        with anyio.CancelScope(shield=True):
            await self._stop_job(trial.name, submission.job)
            await proposal.tell(trial)

    async def _stop_job(self, name: str, job: Job) -> None:
        """Stop a job, and wait for its replicas' grace period."""
        limit = longest_grace(job) + _STOP_MARGIN_SECONDS
        # It may have been deleted meanwhile.
        with anyio.move_on_after(limit), suppress(DanluError):
            await self._jobs.stop(name)

    def _build_report(self) -> SweepReport:
        return SweepReport(self._measure, tuple(self._trials), self._proposals.total)

    def _record_trial(self, trial: SweepTrial) -> SweepTrial:
        self._trials[trial.number - 1] = trial
        self._changed(self._build_report())
        return trial


async def read_last_match(
    jobs: JobBackend, name: str, leader: ReplicaId, pattern: str
) -> float | None:
    """Return the last number in the leader's log that the pattern matches.

    A run that diverged has no value, whatever it reported before.
    """
    expression = re.compile(pattern)
    value: float | None = None
    async for line in jobs.logs(name, replicas=[leader]):
        # A progress bar overwrites itself: each of its states may have a value.
        for part in line.data.decode(errors="replace").split("\r"):
            found = find_last_number(expression, strip_control_sequences(part))
            value = value if found is None else found
    return value if value is not None and math.isfinite(value) else None
