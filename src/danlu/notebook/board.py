"""What a cell shows of its job at a moment, before it is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from danlu.jobs.types import Progress, ReplicaView
from danlu.notebook.curve import Series
from danlu.util.human import format_duration, format_size
from danlu.util.plaintext import clean

__all__ = ["HEAD", "ROWS", "Board", "Line", "chosen", "fields", "hidden", "left", "tone"]

HEAD = ("replica", "state", "restarts", "exit", "CPU", "memory", "GPU")

#: So many replicas have a row of their own.
ROWS = 40

#: Replicas that a person looks for come first where not all have room.
_FIRST = ("Failed", "Running", "Pending", "Waiting", "Stopped", "Succeeded")

_TONES = {
    "Succeeded": "good",
    "Failed": "bad",
    "Lost": "bad",
    "Running": "busy",
    "Stopped": "still",
    "Pruned": "still",
}


class Line(msgspec.Struct, frozen=True):
    """A line of a replica (or of a program of ours), cleaned of what is no text."""

    who: str
    text: str


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is shown.

    ``state`` is a word for what is done now, ``seconds`` how long the job has run. ``lines`` are
    the newest of ``written`` lines that there were. ``notes`` are things to know, ``ended`` is a
    sentence on the end, empty before it. ``logs`` is the directory of the complete logs, ``links``
    are addresses of the replicas' logs where a Jupyter server has them, by the replica's name.
    """

    name: str
    kind: str = ""
    state: str = ""
    seconds: float | None = None
    replicas: tuple[ReplicaView, ...] = ()
    progress: Progress | None = None
    series: tuple[Series, ...] = ()
    lines: tuple[Line, ...] = ()
    written: int = 0
    notes: tuple[str, ...] = ()
    ended: str = ""
    logs: str = ""
    links: dict[str, str] = {}


def tone(state: str) -> str:
    """Which colour a state has: ``good``, ``bad``, ``busy``, ``still``, else ``wait``."""
    return _TONES.get(state, "wait")


def chosen(replicas: Sequence[ReplicaView], room: int = ROWS) -> Sequence[ReplicaView]:
    """Those that have room, in the job's order; :func:`hidden` tells of the others."""
    if len(replicas) <= room:
        return replicas
    order = {state: place for place, state in enumerate(_FIRST)}
    urgent = sorted(range(len(replicas)), key=lambda place: order[replicas[place].state])
    return [replicas[place] for place in sorted(urgent[:room])]


def hidden(replicas: Sequence[ReplicaView], room: int = ROWS) -> str:
    """What is not said of replicas that have no row: ``… and 24 more: 24 Running``."""
    shown = {str(one.id) for one in chosen(replicas, room)}
    rest = [one for one in replicas if str(one.id) not in shown]
    if not rest:
        return ""
    counts = Counter(one.state for one in rest)
    words = ", ".join(f"{count} {state}" for state, count in counts.items())
    return f"… and {len(rest)} more: {words}"


def fields(one: ReplicaView) -> tuple[str, ...]:
    """A replica's row below :data:`HEAD`; a dash where nothing is known."""
    state = f"{one.state}: {one.waits}" if one.waits else str(one.state)
    if one.reason and one.reason not in ("Completed", "Error"):
        state = f"{state} ({one.reason})"
    return (
        str(one.id),
        clean(state)[:120],
        str(one.restarts),
        "-" if one.exit_code is None else str(one.exit_code),
        "-" if one.cpu is None else f"{one.cpu:.2f}",
        "-" if one.memory is None else format_size(one.memory),
        ",".join(map(str, one.gpus)) or "-",
    )


def left(progress: Progress) -> str:
    """How long it will take, in words; empty where nobody knows."""
    seconds = progress.seconds_left
    return "" if seconds is None else f"{format_duration(seconds)} left"
