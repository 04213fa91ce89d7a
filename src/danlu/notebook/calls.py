"""``danlu.train`` and ``danlu.sweep`` where they are called in a notebook: shown as a cell is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from danlu.commands.sweep import Proposals
    from danlu.commands.sweeporder import SweepOrder
    from danlu.commands.sweepreport import SweepReport
    from danlu.commands.trainorder import TrainOrder
    from danlu.notebook.attend import Ended
    from danlu.notebook.desk import Desk

__all__ = ["here", "sweep", "train"]


def here() -> Desk | None:
    """The notebook that this process is the kernel of; None where it is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return None
    from danlu.notebook.magics import Notebook

    notebook = Notebook(shell)
    return notebook if notebook.is_rich else None


def train(order: TrainOrder, desk: Desk) -> Ended:
    """Run an order to its end, shown in the cell that called; how it ended, also badly.

    An interrupt is raised at once, and the job stopped meanwhile.
    """
    from danlu.notebook import background
    from danlu.notebook.attend import followed
    from danlu.notebook.prepare import submittable

    jobs, view = desk.jobs(), desk.view()
    tied = replace(order, tied=True)

    async def act() -> Ended:
        ready = await submittable(tied, desk.settings, view, jobs=jobs)
        return await followed(jobs, ready, view)

    return background.run(act, tick=view.tick)


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

    jobs, view = desk.jobs(), desk.sweep_view()
    tied = replace(order, tied=True)

    async def act() -> SweepReport:
        base = await submittable(tied, desk.settings, view, jobs=jobs)
        return await swept(wanted, points, base=base, jobs=jobs, view=view, changed=changed)

    return background.run(act, tick=view.tick, stopping=lambda: view.phase("Stopping"))
