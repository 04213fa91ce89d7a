"""The options of a sweep, and running it for a prepared submission."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from danlu.errors import UsageError
from danlu.jobs.backends import is_remote, remove_finished_job
from danlu.jobs.types import JobBackend, Submission
from danlu.sweeps.jobs import build_trial_submission, max_parallel_jobs
from danlu.sweeps.labels import make_sweep_labels
from danlu.sweeps.report import SweepObjective, SweepReport, parse_objective
from danlu.sweeps.runner import GridSearch, PointSource, run_sweep
from danlu.sweeps.space import Point, SweepAxis, build_grid, parse_axes
from danlu.sweeps.study import StudySearch, create_study
from danlu.training.framework import Framework
from danlu.training.registry import find_job_framework

if TYPE_CHECKING:
    from danlu.sweeps.study import OptunaStudy

#: How many jobs of a sweep run on a cluster at once by default.
_MAX_REMOTE_TRIALS = 10


class SweepOptions(msgspec.Struct, frozen=True):
    """What to sweep, and how to compare jobs.

    ``parallel`` None means as many jobs as fit on this machine, ``trials`` None the full grid.
    ``storage`` is where Optuna keeps the study, by default in memory. ``replace`` deletes finished
    jobs of the same names first.
    """

    axes: tuple[SweepAxis, ...]
    measure: SweepObjective
    parallel: int | None = None
    trials: int | None = None
    storage: str = ""
    replace: bool = False


def parse_sweep_options(
    sweep: Sequence[str],
    *,
    metric: str = "",
    goal: str | None = None,
    pattern: str = "",
    parallel: int | None = None,
    trials: int | None = None,
    storage: str = "",
    replace: bool = False,
) -> SweepOptions:
    """Return a sweep over ``NAME=VALUES``.

    Raises :class:`UsageError` for invalid values and duplicate names, and without ``trials`` for
    continuous ranges and grids with too many points.
    """
    if storage and trials is None:
        raise UsageError(
            "--storage is only valid with --trials: a grid has no study", hint="add --trials 20"
        )
    axes = parse_axes(sweep)
    if trials is None:
        build_grid(axes)
    objective = parse_objective(metric, goal or "min", pattern)
    return SweepOptions(axes, objective, parallel, trials, storage, replace)


def apply_target_defaults(options: SweepOptions, on: str) -> SweepOptions:
    """Limit parallel jobs on a cluster, whose capacity this machine does not know."""
    if options.parallel is not None or not is_remote(on):
        return options
    return msgspec.structs.replace(options, parallel=_MAX_REMOTE_TRIALS)


def create_point_source(
    options: SweepOptions, study: OptunaStudy | None = None, *, name: str = ""
) -> PointSource:
    """Return the points to try: with ``trials`` those of a study, by default one called ``name``.

    Raises what :func:`~danlu.sweeps.study.create_study` does.
    """
    if options.trials is None:
        return GridSearch(build_grid(options.axes))
    goal, storage = options.measure.goal, options.storage
    chosen = create_study(goal, storage=storage, name=name) if study is None else study
    return StudySearch(chosen, options.axes, total=options.trials)


async def execute_sweep(
    options: SweepOptions,
    points: PointSource,
    *,
    base: Submission,
    jobs: JobBackend,
    changed: Callable[[SweepReport], object] = lambda report: None,
) -> SweepReport:
    """Run the sweep; its jobs are variants of ``base``, named with a number appended.

    Raises what :func:`danlu.sweeps.runner.run_sweep` does.
    """
    parallel = options.parallel or max_parallel_jobs(base.job)
    concurrency = max(1, min(parallel, points.total))
    framework = find_job_framework(base.job)
    common = make_sweep_labels(options.measure, points.total, framework.leader(base.job))
    labels = {**base.labels, **common}
    base = msgspec.structs.replace(base, concurrency=concurrency, labels=labels)
    substituted = frozenset(axis.name for axis in options.axes if axis.substituted)
    digits = len(str(points.total))
    factory = _TrialFactory(base, framework, digits, substituted)
    if options.replace:
        for number in range(1, points.total + 1):
            await remove_finished_job(jobs, factory.trial_name(number))
    return await run_sweep(
        factory.build_trial,
        points,
        jobs=jobs,
        measure=options.measure,
        leader=factory.framework.leader,
        parallel=parallel,
        changed=changed,
    )


class _TrialFactory(msgspec.Struct, frozen=True):
    """Creates the jobs of a sweep; numbers are padded to ``digits``."""

    base: Submission
    framework: Framework
    digits: int
    substituted: frozenset[str]

    def trial_name(self, number: int) -> str:
        return f"{self.base.job.name}-{number:0{self.digits}}"

    def build_trial(self, number: int, point: Point) -> Submission:
        return build_trial_submission(
            self.base,
            point,
            framework=self.framework,
            name=self.trial_name(number),
            substituted=self.substituted,
        )
