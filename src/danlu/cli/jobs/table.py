"""A job as lines of text: its head, its replicas, how far it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import msgspec

from danlu.cli.terminal import clean, columns
from danlu.cli.units import duration, size
from danlu.commands.jobreport import ended_at
from danlu.jobs.types import JobView, Progress, ReplicaView

__all__ = ["HEAD", "Span", "bar", "board", "cells", "measures", "state_style"]

HEAD = ("REPLICA", "STATE", "RESTARTS", "EXIT", "CPU", "MEMORY", "GPU")

_STYLES = {
    "Succeeded": "green",
    "Failed": "red",
    "Lost": "red",
    "Running": "cyan",
    "Restarting": "yellow",
    "Waiting": "yellow",
    "Suspended": "yellow",
    "Stopped": "dim",
}

#: Replicas that a person looks for come first where not all have room.
_FIRST = ("Failed", "Running", "Pending", "Waiting", "Stopped", "Succeeded")

_BAR = 24


class Span(msgspec.Struct, frozen=True):
    """A piece of a line in one style (of :mod:`rich`)."""

    text: str
    style: str = ""


def state_style(state: str) -> str:
    """The colour of a state."""
    return _STYLES.get(state, "")


def board(
    view: JobView, *, now: datetime, width: int, height: int, unicode: bool = True
) -> list[list[Span]]:
    """The whole job in at most ``height`` lines of ``width`` columns."""
    head = _head(view, now)
    foot = [_progress(view.progress, width, unicode)] if view.progress is not None else []
    room = max(1, height - 2 - len(foot))
    lines = [head, *_table(view.replicas, room), *foot]
    return [_cut(line, width) for line in lines[: max(1, height)]]


def _head(view: JobView, now: datetime) -> list[Span]:
    began = view.created or view.status.start_time
    parts = [Span(view.name, "bold"), Span(f" {view.kind} ", "dim")]
    parts.append(Span(view.state, state_style(view.state)))
    if began is not None:
        passed = (ended_at(view) or now) - began
        parts.append(Span(f" {duration(passed.total_seconds())}", "dim"))
    return parts


def _table(replicas: Sequence[ReplicaView], room: int) -> list[list[Span]]:
    shown = _chosen(replicas, room)
    rows = [cells(one) for one in shown]
    widths = [max(map(columns, column)) for column in zip(HEAD, *rows, strict=True)]
    lines = [[Span(_row(HEAD, widths), "dim")]]
    for one, row in zip(shown, rows, strict=True):
        before = row[0].ljust(widths[0]) + "  "
        after = "  " + _row(row[2:], widths[2:], number=True)
        lines.append(
            [Span(before), Span(row[1].ljust(widths[1]), state_style(one.state)), Span(after)]
        )
    hidden = [one for one in replicas if one not in shown]
    if hidden:
        counts = Counter(one.state for one in hidden)
        words = ", ".join(f"{count} {state}" for state, count in counts.items())
        lines.append([Span(f"… and {len(hidden)} more: {words}", "dim")])
    return lines


def _chosen(replicas: Sequence[ReplicaView], room: int) -> list[ReplicaView]:
    """Those that have room, in the job's order; one line is kept to tell of the others."""
    if len(replicas) <= room:
        return list(replicas)
    urgent = sorted(replicas, key=lambda one: _FIRST.index(one.state))[: max(0, room - 1)]
    chosen = {str(one.id) for one in urgent}
    return [one for one in replicas if str(one.id) in chosen]


def _row(row: Sequence[str], widths: Sequence[int], *, number: bool = False) -> str:
    parts = [
        one.rjust(width) if number and place < len(row) - 1 else one.ljust(width)
        for place, (one, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(parts).rstrip()


def cells(one: ReplicaView) -> tuple[str, ...]:
    """A replica's fields below :data:`HEAD`; a dash where nothing is known."""
    state = f"{one.state}: {one.waits}" if one.waits else str(one.state)
    if one.reason and one.reason not in ("Completed", "Error"):
        state = f"{state} ({one.reason})"
    return (
        str(one.id),
        clean(state),
        str(one.restarts),
        "-" if one.exit_code is None else str(one.exit_code),
        "-" if one.cpu is None else f"{one.cpu:.2f}",
        "-" if one.memory is None else size(one.memory),
        ",".join(map(str, one.gpus)) or "-",
    )


def bar(percentage: int, *, unicode: bool = True, width: int = _BAR) -> str:
    """How far: ``██████      ``."""
    full = round(width * max(0, min(100, percentage)) / 100)
    done, left = ("█", "░") if unicode else ("#", ".")
    return done * full + left * (width - full)


def measures(progress: Progress) -> str:
    """The estimate and the last metrics: ``12 s left  loss 0.31``."""
    parts = []
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    parts += [f"{clean(name)} {value:.4g}" for name, value in progress.metrics.items()]
    return "  ".join(parts)


def _progress(progress: Progress, width: int, unicode: bool) -> list[Span]:
    spans = []
    if progress.percentage is not None:
        drawn = bar(progress.percentage, unicode=unicode, width=min(_BAR, max(4, width // 4)))
        spans = [Span(drawn, "green"), Span(f" {progress.percentage} %  ")]
    return [*spans, Span(measures(progress))]


def _cut(line: list[Span], width: int) -> list[Span]:
    """What of a line fits, so that no line takes two."""
    cut, room = [], width - 1
    for span in line:
        if room <= 0:
            break
        text = span.text if columns(span.text) <= room else span.text[:room]
        cut.append(Span(text, span.style))
        room -= columns(text)
    return cut
