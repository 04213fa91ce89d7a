"""A sweep in the foreground: what its options say, its jobs, its table, and Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from danlu.errors import DanluError, UsageError

if TYPE_CHECKING:
    from danlu.cli.session import Session
    from danlu.commands.sweep import Proposals
    from danlu.commands.sweepreport import Measure, SweepReport
    from danlu.commands.sweepspace import Axis, Point
    from danlu.jobs.types import Jobs, Submission

__all__ = ["SweepOrder", "run", "sweep_options", "taken"]

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--sweep",
        "sweeps",
        multiple=True,
        metavar="NAME=VALUES",
        help="Run at all of A,B,C or of LOW:HIGH[:STEP|:log]; for each value --NAME VALUE follows "
        "the script's arguments, or takes the place of {NAME}. Repeatable.",
    ),
    click.option(
        "--parallel",
        type=click.IntRange(min=1),
        metavar="N",
        help="Jobs of a sweep at once (default: what this machine has room for).",
    ),
    click.option("--metric", default="", metavar="NAME", help="What a sweep compares: loss."),
    click.option(
        "--goal",
        type=click.Choice(["min", "max"]),
        help="Whether the least or the greatest of it is best (default: min).",
    ),
    click.option(
        "--metric-pattern",
        default="",
        metavar="REGEX",
        help="Take it from the leader's log: the last match of 'loss=([0-9.]+)'.",
    ),
    click.option(
        "--trials",
        type=click.IntRange(min=1),
        metavar="N",
        help="Have Optuna choose N points of a sweep (danlu[sweep]).",
    ),
)


def sweep_options(function: F) -> F:
    """The options of a sweep."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


class SweepOrder(msgspec.Struct, frozen=True):
    """A sweep as it was ordered; ``trials`` is None for a whole grid."""

    axes: tuple[Axis, ...]
    measure: Measure
    parallel: int | None = None
    trials: int | None = None

    def proposals(self) -> Proposals:
        """The points that are to be tried."""
        from danlu.commands.sweep import Grid
        from danlu.commands.sweepspace import grid
        from danlu.commands.sweepstudy import Study, new_study

        if self.trials is None:
            return Grid(grid(self.axes))
        return Study(new_study(self.measure.goal), self.axes, total=self.trials)


def taken(flags: dict[str, Any]) -> SweepOrder | None:
    """Take the options of a sweep out of ``flags``; None where none is ordered.

    Raises :class:`UsageError` where they are wrong, or say how to sweep but not what.
    """
    sweeps: Sequence[str] = flags.pop("sweeps")
    given = {
        "--parallel": flags.pop("parallel"),
        "--metric": flags.pop("metric"),
        "--goal": flags.pop("goal"),
        "--metric-pattern": flags.pop("metric_pattern"),
        "--trials": flags.pop("trials"),
    }
    if not sweeps:
        for name, value in given.items():
            if value:
                raise UsageError(f"{name} is of a sweep", hint="say what to sweep: --sweep lr=1,2")
        return None
    from danlu.commands.sweepreport import measure_of
    from danlu.commands.sweepspace import grid, parse_axes

    axes = parse_axes(sweeps)
    if given["--trials"] is None:
        grid(axes)
    goal = given["--goal"] or "min"
    measure = measure_of(given["--metric"], goal, given["--metric-pattern"])
    return SweepOrder(axes, measure, given["--parallel"], given["--trials"])


def run(
    this: Session, ordered: Submission, order: SweepOrder, *, progress: str, replace: bool
) -> int:
    """Sweep over ``ordered`` to the end, or until Ctrl-C; the exit code."""
    from functools import partial

    import anyio

    from danlu.cli.jobs.sweeptable import SweepLines, best_line, fields, print_report
    from danlu.cli.output import print_json
    from danlu.commands.jobs import here

    lines = SweepLines(this.terminal, as_json=progress == "json")
    swept = _Swept(ordered, order, replace=replace)
    begin = partial(swept.run, here(this.settings), lines.changed)
    number, report = anyio.run(begin)
    if report is not None:
        if progress == "json":
            print_json(fields(report), this.terminal)
        else:
            print_report(report, this.terminal)
        this.terminal.insist(best_line(report))
    if number:
        this.terminal.insist("interrupted" if number == signal.SIGINT else "terminated")
        return 128 + number
    return 0 if report is None else report.exit_code


class _Swept:
    def __init__(self, ordered: Submission, order: SweepOrder, *, replace: bool) -> None:
        from danlu.training.registry import framework_of

        self._ordered = ordered
        self._order = order
        self._replace = replace
        self._framework = framework_of(ordered.job.kind)
        self._report: SweepReport | None = None
        self._proposals = order.proposals()

    async def run(
        self, jobs: Jobs, changed: Callable[[SweepReport], None]
    ) -> tuple[int, SweepReport | None]:
        """The signal that ended the sweep (0: none did), and how it stood last."""
        import anyio

        came: list[int] = []
        errors: list[DanluError] = []
        async with anyio.create_task_group() as group:

            async def work() -> None:
                try:
                    await self._sweep(jobs, changed)
                except DanluError as error:
                    # Not through the group, which would wrap it.
                    errors.append(error)
                group.cancel_scope.cancel()

            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                group.start_soon(work)
                async for number in signals:
                    came.append(number)
                    group.cancel_scope.cancel()
                    break
        if errors:
            raise errors[0]
        return came[0] if came else 0, self._report

    async def _sweep(self, jobs: Jobs, changed: Callable[[SweepReport], None]) -> None:
        from danlu.commands.sweep import sweep
        from danlu.commands.sweepjob import fitting

        def noted(report: SweepReport) -> None:
            self._report = report
            changed(report)

        if self._replace:
            await self._forget(jobs)
        job = self._ordered.job
        self._report = await sweep(
            self._at,
            self._proposals,
            jobs=jobs,
            measure=self._order.measure,
            leader=self._framework.leader,
            parallel=self._order.parallel or fitting(job),
            changed=noted,
        )

    def _at(self, number: int, point: Point) -> Submission:
        from danlu.commands.sweepjob import at_point

        name = self._name(number)
        return at_point(self._ordered, point, framework=self._framework, name=name)

    def _name(self, number: int) -> str:
        width = len(str(self._proposals.total))
        return f"{self._ordered.job.name}-{number:0{width}}"

    async def _forget(self, jobs: Jobs) -> None:
        from danlu.commands.jobs import forget_finished

        for number in range(1, self._proposals.total + 1):
            await forget_finished(jobs, self._name(number))
