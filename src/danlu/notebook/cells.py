"""A cell from its text to the values that come back: made ready, run, and ended well or not."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from msgspec.structs import replace

from danlu.commands.jobreport import failure
from danlu.commands.shipping import is_call
from danlu.errors import Span, UsageError
from danlu.notebook import background
from danlu.notebook.attend import Ended, attached, followed, left
from danlu.notebook.bundle import command, make
from danlu.notebook.code import NAME, check
from danlu.notebook.desk import search_path
from danlu.notebook.failure import failed
from danlu.notebook.order import RETURNS, sweep_order, train_order
from danlu.notebook.prepare import submittable
from danlu.notebook.values import returned

if TYPE_CHECKING:
    from danlu.commands.trainorder import TrainOrder
    from danlu.jobs.types import Jobs
    from danlu.notebook.desk import Desk
    from danlu.notebook.types import Cell, CellOrder

__all__ = ["EVERY", "attach", "run"]

#: The label of a job that returns what each replica has.
EVERY = "every"


def run(cell: Cell, desk: Desk) -> None:
    """Run a cell as a job, show it, and set what it returns.

    Raises :class:`~danlu.notebook.failure.CellFailed` where the job failed, :class:`UsageError` for
    code that is no Python and :class:`DanluError` of many kinds before; and
    :class:`KeyboardInterrupt`, while the job is being stopped.
    """
    _check(cell.code)
    jobs = desk.jobs(cell.order.on)
    sweep = sweep_order(cell.order)
    files = TemporaryDirectory(prefix="danlu-cell-", ignore_cleanup_errors=True)
    try:
        order = _ordered(cell, desk, Path(files.name))
    except BaseException:
        files.cleanup()
        raise
    if sweep is not None:
        from danlu.notebook import sweeps

        sweeps.run(sweep, order, desk, jobs=jobs, files=files)
    elif cell.order.detach:
        _detached(order, desk, jobs, files)
    else:
        _attended(cell.order, order, desk, jobs=jobs, files=files)


def _check(code: str) -> None:
    """Raise :class:`UsageError` for code that is no Python.

    IPython would show a SyntaxError below the lines of this program.
    """
    try:
        check(code)
    except SyntaxError as error:
        told = "".join(traceback.format_exception_only(error)).rstrip("\n").split("\n")
        line = error.lineno or 1
        raise UsageError(
            f"line {line} of the cell is no Python",
            details=tuple(told),
            span=Span(NAME, line, error.offset or 1),
        ) from None


def _ordered(cell: Cell, desk: Desk, files: Path) -> TrainOrder:
    make(cell, desk.values, target=files, place=desk.directory, path=search_path())
    order = train_order(
        cell.order,
        directory=desk.directory,
        command=command(),
        python=sys.executable,
        files=files,
    )
    return replace(order, labels={**order.labels, EVERY: "true"}) if cell.order.every else order


def _attended(
    wanted: CellOrder,
    order: TrainOrder,
    desk: Desk,
    *,
    jobs: Jobs,
    files: TemporaryDirectory[str],
) -> None:
    view = desk.view(wanted.lines)

    async def act() -> Ended:
        with files:
            ready = await submittable(order, desk.settings, view, jobs=jobs)
            return await followed(jobs, ready, view)

    ended = background.run(act, tick=view.tick)
    _take(ended, desk, wanted.returns, every=wanted.every)


def _detached(order: TrainOrder, desk: Desk, jobs: Jobs, files: TemporaryDirectory[str]) -> None:
    view = desk.view(0)

    async def act() -> None:
        with files:
            ready = await submittable(order, desk.settings, view, jobs=jobs)
            where = f" --on {order.on}" if order.on else ""
            await left(jobs, ready, view, how=f"%jobs attach {ready.job.name}{where}")

    background.run(act, tick=view.tick)


def attach(name: str, desk: Desk, *, on: str = "") -> None:
    """Show a job that runs or has run, and set what it returns; an interrupt leaves it alone.

    Raises as :func:`run` does.
    """
    jobs = desk.jobs(on)
    view = desk.view()
    ended = background.run(lambda: attached(jobs, name, view), tick=view.tick)
    if is_call(ended.result):
        if not ended.outcome.succeeded:
            raise failure(ended.outcome)
        return
    labels = ended.result.view.labels
    names = [one for one in labels.get(RETURNS, "").split(",") if one]
    _take(ended, desk, names, every=EVERY in labels)


def _take(ended: Ended, desk: Desk, names: Sequence[str], *, every: bool) -> None:
    """Set what a job returned, or raise how it failed."""
    if not ended.outcome.succeeded:
        raise failed(ended.outcome, ended.result)
    desk.values.put(returned(ended.result, names, every=every))
