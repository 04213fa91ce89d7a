"""``danlu.train(function)``: a call as an order of a job."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.errors import UsageError

if TYPE_CHECKING:
    from danlu.commands.settings import Settings
    from danlu.commands.shipping import Call
    from danlu.commands.trainorder import TrainOrder

__all__ = ["call_order"]

#: Of a function that says nothing: its variables are the plainest (RANK, WORLD_SIZE).
_PLAINEST = "pytorch"

#: The one whose leader runs no program of the user's: it starts those of the workers.
_LAUNCHED = "mpi"


def call_order(
    call: Call, order: TrainOrder, *, files: Path, every: bool, settings: Settings
) -> TrainOrder:
    """The order to make ``call`` on every replica; what replicas need for it is put into ``files``.

    Without an environment or an image in ``order`` they are processes of this Python. ``files``,
    an empty directory, has to be there until the job is submitted. Raises :class:`UsageError` for
    what cannot be sent.
    """
    from danlu.commands.places import is_away
    from danlu.commands.shipping import LABEL, pack, program
    from danlu.commands.train import plan

    contained = bool(order.env or order.image)
    away = is_away(order.on)
    if away and not contained:
        raise UsageError(
            f"in which image is {call.name} to be called on {order.on}?",
            hint="image=REF names one; env=FILE builds one and pushes it",
        )
    ordered = msgspec.structs.replace(
        order,
        command=program() if contained else program(sys.executable),
        framework=order.framework or _guessed(call),
        python="" if contained else sys.executable,
        host_python=not contained,
        name=order.name or _fresh_name(call),
        labels={**order.labels, LABEL: call.name},
        files=files,
    )
    planned = plan(ordered, settings=settings)
    assert planned.place is not None
    project = planned.place.directory if contained else None
    mentioned = pack(call, files, project=project, seen=not away)
    all_of_them = every or planned.framework == _LAUNCHED
    return msgspec.structs.replace(
        ordered,
        value="all" if all_of_them else "leader",
        code=_code(call, project, mentioned) if away and project is not None else {},
    )


def _code(call: Call, project: Path, mentioned: Sequence[str]) -> Mapping[str, Path]:
    from danlu.commands.code import call_code

    return call_code(call, project, mentioned)


def _guessed(call: Call) -> str:
    import inspect

    from danlu.commands.frameworkguess import guess

    try:
        file = inspect.getsourcefile(call.function)
        return guess(Path(file)).framework if file else _PLAINEST
    except (TypeError, UsageError):
        return _PLAINEST


def _fresh_name(call: Call) -> str:
    from danlu.commands.trainmanifest import fresh_name

    return fresh_name(call.name.rpartition(".")[2].strip("<>_"))
