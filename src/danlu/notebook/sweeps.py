"""A sweep from a cell: its jobs, their live table, and what the best of them returned."""

from __future__ import annotations

from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from danlu.notebook import background
from danlu.notebook.failure import CellFailed
from danlu.notebook.order import RETURNS
from danlu.notebook.prepare import submittable
from danlu.notebook.sweepview import best_sentence
from danlu.notebook.values import returned

if TYPE_CHECKING:
    from danlu.commands.sweep import Proposals
    from danlu.commands.sweeporder import SweepOrder
    from danlu.commands.sweepreport import SweepReport
    from danlu.commands.trainorder import TrainOrder
    from danlu.jobs.types import Jobs, Result, Submission
    from danlu.notebook.desk import Desk, SweepView

__all__ = ["run", "swept"]


def run(
    sweep: SweepOrder,
    order: TrainOrder,
    desk: Desk,
    *,
    jobs: Jobs,
    files: TemporaryDirectory[str],
) -> None:
    """Sweep over a cell, show it, and set what the best job returned.

    Raises :class:`CellFailed` where a job failed, or where nothing could be compared though a
    metric was named.
    """
    from danlu.commands.sweeporder import proposals

    view = desk.sweep_view()
    points = proposals(sweep)
    wanted = replace(sweep, replace=bool(order.name))

    async def act() -> tuple[SweepReport, Result | None]:
        with files:
            base = await submittable(order, desk.settings, view, jobs=jobs)
            report = await swept(wanted, points, base=base, jobs=jobs, view=view)
        best = report.best
        wants = order.value != "none" and best is not None and not report.exit_code
        return report, await jobs.result(best.name) if wants and best is not None else None

    report, result = background.run(act, tick=view.tick, stopping=lambda: view.phase("Stopping"))
    if report.exit_code:
        raise _failed(report)
    names = [one for one in order.labels.get(RETURNS, "").split(",") if one]
    if result is not None:
        desk.values.put(returned(result, names, every=order.value == "all"))


async def swept(
    sweep: SweepOrder,
    points: Proposals,
    *,
    base: Submission,
    jobs: Jobs,
    view: SweepView,
    changed: Callable[[SweepReport], object] = lambda report: None,
) -> SweepReport:
    """Carry a sweep out and show it; where that is cancelled its jobs are stopped first.

    ``changed`` hears of every change as well.
    """
    from danlu.commands.sweeporder import carry_out

    def both(report: SweepReport) -> None:
        view.changed(report)
        changed(report)

    view.phase("Running", name=base.job.name)
    try:
        report = await carry_out(sweep, points, base=base, jobs=jobs, changed=both)
    except anyio.get_cancelled_exc_class():
        view.ended("Stopped", "interrupted: the jobs that ran are stopped")
        raise
    except Exception as error:
        view.ended("Failed", str(error))
        raise
    view.ended("Failed" if report.exit_code else "Succeeded", best_sentence(report))
    return report


def _failed(report: SweepReport) -> CellFailed:
    bad = [one for one in report.trials if one.state in ("Failed", "Stopped")]
    if not bad:
        return CellFailed(best_sentence(report), hint="danlu.report(loss=…) reports a metric")
    first = bad[0]
    return CellFailed(
        f"{len(bad)} of {len(report.trials)} jobs of the sweep failed",
        details=tuple(f"{one.name} {one.state}: {one.reason}" for one in bad[:10]),
        hint=f"`%jobs attach {first.name}` shows why the first of them failed",
    )
