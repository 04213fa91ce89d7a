"""A sweep in the foreground: what its options say, its jobs, its table, and Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from danlu.errors import DanluError, UsageError

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from danlu.cli.session import Session
    from danlu.commands.sweeporder import SweepOrder
    from danlu.commands.sweepreport import SweepReport
    from danlu.jobs.types import Jobs, Submission

__all__ = ["run", "sweep_options", "taken"]

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


def taken(flags: dict[str, Any], *, replace: bool) -> SweepOrder | None:
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
    from danlu.commands.sweeporder import SweepOrder
    from danlu.commands.sweepreport import measure_of
    from danlu.commands.sweepspace import grid, parse_axes

    axes = parse_axes(sweeps)
    if given["--trials"] is None:
        grid(axes)
    goal = given["--goal"] or "min"
    measure = measure_of(given["--metric"], goal, given["--metric-pattern"])
    return SweepOrder(axes, measure, given["--parallel"], given["--trials"], replace)


def run(this: Session, ordered: Submission, order: SweepOrder, *, progress: str) -> int:
    """Sweep over ``ordered`` to the end, or until Ctrl-C; the exit code."""
    from functools import partial

    import anyio

    from danlu.cli.jobs.sweeptable import SweepLines, best_line, fields, print_report
    from danlu.cli.output import print_json
    from danlu.commands.places import jobs_on
    from danlu.commands.sweeporder import placed

    lines = SweepLines(this.terminal, as_json=progress == "json")
    foreground = _Foreground(ordered, placed(order, this.on), lines.changed)
    number = anyio.run(partial(foreground.run, jobs_on(this.on, this.settings)))
    report = foreground.report
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


class _Foreground:
    """A sweep until its end or a signal; ``report`` is how it stood last."""

    def __init__(
        self, ordered: Submission, order: SweepOrder, changed: Callable[[SweepReport], None]
    ) -> None:
        from danlu.commands.sweeporder import proposals

        self.report: SweepReport | None = None
        self._ordered = ordered
        self._order = order
        self._changed = changed
        self._points = proposals(order)
        self._errors: list[DanluError] = []

    async def run(self, jobs: Jobs) -> int:
        """The signal that ended the sweep, 0 where none did."""
        import anyio

        came = 0
        async with anyio.create_task_group() as group:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                group.start_soon(self._sweep, jobs, group)
                async for number in signals:
                    came = number
                    group.cancel_scope.cancel()
                    break
        if self._errors:
            raise self._errors[0]
        return int(came)

    async def _sweep(self, jobs: Jobs, group: TaskGroup) -> None:
        from danlu.commands.sweeporder import carry_out

        try:
            self.report = await carry_out(
                self._order, self._points, base=self._ordered, jobs=jobs, changed=self._note
            )
        except DanluError as error:
            # Not through the group, which would wrap it.
            self._errors.append(error)
        group.cancel_scope.cancel()

    def _note(self, report: SweepReport) -> None:
        self.report = report
        self._changed(report)
