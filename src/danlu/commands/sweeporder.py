"""A sweep as it was ordered, and carrying it out on what was made ready to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from danlu.commands.sweepreport import Measure
from danlu.commands.sweepspace import Axis, Point

if TYPE_CHECKING:
    from danlu.commands.sweep import Proposals
    from danlu.commands.sweepreport import SweepReport
    from danlu.commands.sweepstudy import OptunaStudy
    from danlu.jobs.types import Jobs, Submission
    from danlu.training.framework import Framework

__all__ = ["SweepOrder", "carry_out", "placed", "proposals"]

#: So many jobs of a sweep are on a cluster at once, where the order does not say it.
_AWAY = 10


class SweepOrder(msgspec.Struct, frozen=True):
    """What is swept and how it is judged.

    ``parallel`` is None for as many jobs at once as fit on this machine, ``trials`` for a whole
    grid. ``replace`` forgets finished jobs of the same names first.
    """

    axes: tuple[Axis, ...]
    measure: Measure
    parallel: int | None = None
    trials: int | None = None
    replace: bool = False


def placed(order: SweepOrder, on: str) -> SweepOrder:
    """The order for a sweep at ``on``: this machine's room says nothing of a cluster's."""
    from danlu.commands.places import is_away

    if order.parallel is not None or not is_away(on):
        return order
    return msgspec.structs.replace(order, parallel=_AWAY)


def proposals(order: SweepOrder, study: OptunaStudy | None = None) -> Proposals:
    """The points that are to be tried: those of a ``study`` (a new one) where trials are given."""
    from danlu.commands.sweep import Grid
    from danlu.commands.sweepspace import grid

    if order.trials is None:
        return Grid(grid(order.axes))
    from danlu.commands.sweepstudy import Study, new_study

    chosen = new_study(order.measure.goal) if study is None else study
    return Study(chosen, order.axes, total=order.trials)


async def carry_out(
    order: SweepOrder,
    points: Proposals,
    *,
    base: Submission,
    jobs: Jobs,
    changed: Callable[[SweepReport], None] = lambda report: None,
) -> SweepReport:
    """Sweep over ``base``: its jobs are called as it is, with the number of each after it.

    Raises what :func:`danlu.commands.sweep.sweep` does.
    """
    from danlu.commands.jobs import forget_finished
    from danlu.commands.sweep import sweep
    from danlu.commands.sweepjob import fitting
    from danlu.training.registry import framework_of

    making = _Making(base, framework_of(base.job.kind), len(str(points.total)))
    if order.replace:
        for number in range(1, points.total + 1):
            await forget_finished(jobs, making.name(number))
    return await sweep(
        making.job,
        points,
        jobs=jobs,
        measure=order.measure,
        leader=making.framework.leader,
        parallel=order.parallel or fitting(base.job),
        changed=changed,
    )


class _Making(msgspec.Struct, frozen=True):
    """Makes the jobs of a sweep; numbers are written with ``digits``."""

    base: Submission
    framework: Framework
    digits: int

    def name(self, number: int) -> str:
        return f"{self.base.job.name}-{number:0{self.digits}}"

    def job(self, number: int, point: Point) -> Submission:
        from danlu.commands.sweepjob import at_point

        return at_point(self.base, point, framework=self.framework, name=self.name(number))
