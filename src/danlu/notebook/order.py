"""From what a cell asks for to an order of ``danlu train``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from danlu.commands.trainorder import Share, TrainOrder
from danlu.errors import UsageError
from danlu.notebook.types import CellOrder

if TYPE_CHECKING:
    from danlu.commands.sweeporder import SweepOrder

__all__ = ["RETURNS", "sweep_order", "train_order"]

#: The label of a job that says which variables come back, with commas between them.
RETURNS = "returns"


def train_order(
    order: CellOrder, *, directory: Path, command: tuple[str, ...], python: str, files: Path
) -> TrainOrder:
    """The training job that a cell stands for.

    ``command`` runs the cell on a replica, with ``files`` (a bundle) beside it; ``directory`` is
    where the notebook is, ``python`` the path of the interpreter where the cell names neither an
    image nor a build file. A framework that the cell does not name is the one that its code
    imports. Raises :class:`UsageError` where it imports none.
    """
    return TrainOrder(
        directory=directory,
        command=command,
        framework=order.framework or _imported(files),
        replicas={name: role.replicas for name, role in order.roles.items()},
        shares={
            name: Share(role.cpu, role.memory, role.gpu)
            for name, role in order.roles.items()
            if role.cpu or role.memory or role.gpu is not None
        },
        cpu=order.cpu,
        memory=order.memory,
        gpu=order.gpu,
        env=order.env,
        image=order.image,
        python=python,
        name=order.name,
        backoff_limit=order.backoff_limit,
        restart=order.restart,
        deadline=order.deadline,
        clean=order.clean,
        variables=order.variables,
        volumes=order.volumes,
        labels={RETURNS: ",".join(order.returns)} if order.returns else {},
        files=files,
        value=_value(order),
        tied=not order.detach,
        on=order.on,
    )


def sweep_order(order: CellOrder) -> SweepOrder | None:
    """The sweep that a cell asks for, None for none.

    Raises :class:`UsageError` for a name that is swept twice, and for points without end, or too
    many, of which no study is to try some.
    """
    if not order.sweep:
        return None
    from danlu.commands.sweeporder import SweepOrder, placed
    from danlu.commands.sweepreport import measure_of
    from danlu.commands.sweepspace import grid, parse_axes

    axes = parse_axes(order.sweep)
    if order.trials is None:
        grid(axes)
    measure = measure_of(order.metric, order.goal or "min", order.pattern)
    return placed(SweepOrder(axes, measure, order.parallel, order.trials), order.on)


def _value(order: CellOrder) -> Literal["none", "leader", "all"]:
    if not order.returns:
        return "none"
    return "all" if order.every else "leader"


def _imported(files: Path) -> str:
    """The framework that the cell's code imports, which is in ``files`` already."""
    from danlu.commands.frameworkguess import guess

    for script in sorted(files.glob("cell/*.py")):
        try:
            return guess(script).framework
        except UsageError as error:
            message = error.message.replace(script.name, "the cell")
            hint = "say which it is: %framework=pytorch, or --framework pytorch"
            raise UsageError(message, hint=hint) from error
    return ""
