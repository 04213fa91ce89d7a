"""A job as lines of styled text: the header, a row for each replica, progress."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from danlu.cli.terminal import DRAWING_MARGIN, text_width
from danlu.jobs.types import JobView, ReplicaView
from danlu.submission.job_view_model import (
    REPLICA_COLUMNS,
    StateStyle,
    elapsed_seconds,
    format_metrics,
    progress_bar,
    replica_row,
    summarize_hidden,
    visible_replicas,
)
from danlu.submission.job_view_model import state_style as semantic_style
from danlu.training.progress import TrainingProgress
from danlu.util.human import format_duration

#: The titles of a table of replicas.
REPLICA_TITLES = tuple(title.upper() for title in REPLICA_COLUMNS)

_RICH_STYLES: dict[StateStyle, str] = {
    "success": "green",
    "error": "red",
    "active": "cyan",
    "attention": "yellow",
    "muted": "dim",
    "plain": "",
}

_BAR_WIDTH = 24


class StyledText(msgspec.Struct, frozen=True):
    """A piece of a line in one style, as :mod:`rich` names it."""

    text: str
    style: str = ""


Line = list[StyledText]


def state_style(state: str) -> str:
    """Return the style of a state of a job or a replica, as :mod:`rich` names it."""
    return _RICH_STYLES[semantic_style(state)]


def render_job_table(
    view: JobView,
    *,
    now: datetime,
    width: int,
    height: int,
    unicode: bool = True,
    notice: str = "",
) -> list[Line]:
    """Render a job in at most ``height`` lines of ``width`` columns; ``notice`` comes last."""
    foot = []
    if view.progress is not None:
        foot.append(_progress_line(view.progress, width, unicode))
    if notice:
        foot.append([StyledText(notice, "yellow")])
    room = max(1, height - 2 - len(foot))
    lines = [_header_line(view, now), *_replica_lines(view.replicas, room), *foot]
    return [_truncate_line(line, width) for line in lines[: max(1, height)]]


def _header_line(view: JobView, now: datetime) -> Line:
    seconds = elapsed_seconds(view, now=now)
    line = [
        StyledText(view.name, "bold"),
        StyledText(f" {view.kind} ", "dim"),
        StyledText(view.state, state_style(view.state)),
    ]
    if seconds is not None:
        line.append(StyledText(f" {format_duration(seconds)}", "dim"))
    return line


def _replica_lines(replicas: Sequence[ReplicaView], room: int) -> list[Line]:
    # If not all fit, one line is needed to count the others.
    limit = room if len(replicas) <= room else max(0, room - 1)
    shown = visible_replicas(replicas, limit)
    rows = [replica_row(replica) for replica in shown]
    columns = zip(REPLICA_TITLES, *rows, strict=True)
    widths = [max(map(text_width, column)) for column in columns]
    lines = [[StyledText(_format_row(REPLICA_TITLES, widths), "dim")]]
    for replica, row in zip(shown, rows, strict=True):
        lines.append(
            [
                StyledText(row[0].ljust(widths[0]) + "  "),
                StyledText(row[1].ljust(widths[1]), state_style(replica.state)),
                StyledText("  " + _format_row(row[2:], widths[2:], align_right=True)),
            ]
        )
    hidden = summarize_hidden(replicas, limit)
    return [*lines, [StyledText(hidden, "dim")]] if hidden else lines


def _format_row(row: Sequence[str], widths: Sequence[int], *, align_right: bool = False) -> str:
    cells = [
        cell.rjust(width) if align_right and index < len(row) - 1 else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _progress_line(progress: TrainingProgress, width: int, unicode: bool) -> Line:
    line = []
    if progress.percentage is not None:
        bar_width = min(_BAR_WIDTH, max(4, width // 4))
        bar = progress_bar(progress.percentage, unicode=unicode, width=bar_width)
        line = [StyledText(bar, "green"), StyledText(f" {progress.percentage} %  ")]
    return [*line, StyledText(format_metrics(progress))]


def _truncate_line(line: Line, width: int) -> Line:
    """Cut a line so that the terminal does not wrap it."""
    truncated, room = [], width - DRAWING_MARGIN
    for part in line:
        if room <= 0:
            break
        text = part.text if text_width(part.text) <= room else part.text[:room]
        truncated.append(StyledText(text, part.style))
        room -= text_width(text)
    return truncated
