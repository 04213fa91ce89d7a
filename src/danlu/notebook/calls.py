"""What ``danlu.train`` and its like do when they are called in a notebook: shown as a cell is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from danlu.commands.jobreport import Outcome
    from danlu.commands.sweep import Proposals
    from danlu.commands.sweeporder import SweepOrder
    from danlu.commands.sweepreport import SweepReport
    from danlu.commands.trainorder import TrainOrder
    from danlu.jobs.types import Result
    from danlu.notebook.attend import Ended
    from danlu.notebook.desk import Desk

__all__ = ["attach", "here", "plainly", "submit", "sweep", "train"]


def here() -> Desk | None:
    """The notebook that this process is the kernel of; None where it is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return None
    from danlu.notebook.magics import Notebook

    notebook = Notebook(shell)
    return notebook if notebook.is_rich else None


def plainly() -> AbstractContextManager[None]:
    """Within it errors are such as a notebook shows without a traceback through danlu."""
    from danlu.notebook import told

    return nullcontext() if here() is None else told.plainly()


def train(order: TrainOrder, desk: Desk) -> tuple[Outcome, Result]:
    """Run an order to its end, shown in the cell that called; how it ended, also badly.

    An interrupt is raised at once, and the job stopped meanwhile.
    """
    from danlu.notebook import background
    from danlu.notebook.attend import followed
    from danlu.notebook.prepare import submittable

    jobs, view = desk.jobs(order.on), desk.view()

    async def act() -> Ended:
        ready = await submittable(order, desk.settings, view, jobs=jobs)
        return await followed(jobs, ready, view)

    ended = background.run(act, tick=view.tick)
    return ended.outcome, ended.result


def submit(order: TrainOrder, desk: Desk) -> str:
    """Start an order's job and leave it alone; its name."""
    from danlu.notebook import background
    from danlu.notebook.attend import left
    from danlu.notebook.prepare import submittable

    jobs, view = desk.jobs(order.on), desk.view()

    async def act() -> str:
        alone = replace(order, tied=False)
        ready = await submittable(alone, desk.settings, view, jobs=jobs)
        where = f", on={order.on!r}" if order.on else ""
        return await left(jobs, ready, view, how=f"danlu.attach({ready.job.name!r}{where})")

    return background.run(act, tick=view.tick)


def attach(name: str, desk: Desk, *, on: str = "") -> tuple[Outcome, Result]:
    """Show a job that was left to its end; an interrupt leaves it alone."""
    from danlu.notebook import background
    from danlu.notebook.attend import attached

    jobs, view = desk.jobs(on), desk.view()
    ended = background.run(lambda: attached(jobs, name, view), tick=view.tick)
    return ended.outcome, ended.result


def sweep(
    wanted: SweepOrder,
    points: Proposals,
    order: TrainOrder,
    desk: Desk,
    *,
    changed: Callable[[SweepReport], object],
) -> SweepReport:
    """Carry a sweep out, shown in the cell that called."""
    from danlu.notebook import background
    from danlu.notebook.prepare import submittable
    from danlu.notebook.sweeps import swept

    jobs, view = desk.jobs(order.on), desk.sweep_view()

    async def act() -> SweepReport:
        base = await submittable(order, desk.settings, view, jobs=jobs)
        return await swept(wanted, points, base=base, jobs=jobs, view=view, changed=changed)

    return background.run(act, tick=view.tick, stopping=lambda: view.phase("Stopping"))
