"""The build before a job, as cells show it: rows of branches and running vertices."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape

from danlu.graph.progress import Event, Finished, Log, Message
from danlu.project.build_view_model import (
    BuildRow,
    BuildState,
    format_finished,
    format_log_entry,
)
from danlu.util.human import format_duration
from danlu.util.sanitize import strip_control_sequences

#: How much of a name or a line of output to show, and how many lines of each vertex.
_MAX_LENGTH, _MAX_LINES = 120, 3

_BAR_WIDTH = 20
_CELL = "padding:1px 12px 1px 0;text-align:left"
_FAILED, _DIM, _DONE = "#d0454c", "#767676", "#2f81d6"


class BuildTracker:
    """The state of the build before a job; without events there is nothing to show."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._state: BuildState | None = None
        self._began = 0.0

    def handle(self, event: Event) -> None:
        """Update the state by an event."""
        if self._state is None:
            self._state, self._began = BuildState(), self._clock()
        self._state.handle(event, self._clock() - self._began)

    def rows(self) -> tuple[BuildRow, ...]:
        """Return what to show now."""
        if self._state is None:
            return ()
        rows = self._state.rows(self._clock() - self._began)
        return rows or ((BuildRow(self._state.message),) if self._state.message else ())

    def reset(self) -> str:
        """Forget the build; return what it did, such as ``python 2 built, 30 cached``."""
        state, self._state = self._state, None
        if state is None:
            return ""
        branches = [branch for branch in state.sorted_branches() if branch.counts]
        return "; ".join(f"{branch.name or 'image'} {branch.counts}" for branch in branches)


def format_build_event(event: Event) -> str:
    """Return the line about an event for displays that only append lines; empty if it has none."""
    match event:
        case Finished() if event.error or not event.cached:
            return format_finished(event)
        case Log() | Message():
            return format_log_entry(event) or ""
        case _:
            return ""


def render_build_text(rows: Sequence[BuildRow]) -> list[str]:
    """Render rows as lines of plain text."""
    lines = []
    for row in rows:
        indent = "    " if row.is_vertex else "  "
        seconds = "" if row.seconds is None else format_duration(row.seconds)
        name = _truncate_text(row.name)
        lines.append(
            f"{indent}{name:<10} {'  '.join(filter(None, (row.detail, seconds)))}".rstrip()
        )
        lines += [f"      {_truncate_text(line)}" for line in row.lines[-_MAX_LINES:]]
    return lines


def render_build_html(rows: Sequence[BuildRow], max_rows: int) -> str:
    """Render at most ``max_rows`` rows as a table, with bars for transfers."""
    if not rows:
        return ""
    body = "".join(_render_row(row) for row in rows[:max_rows])
    return (
        "<div class='danlu-build' style='overflow-x:auto'>"
        f"<table style='margin:4px 0;border-collapse:collapse'><tbody>{body}</tbody></table></div>"
    )


def _render_row(row: BuildRow) -> str:
    indent = ";padding-left:2em" if row.is_vertex else ";font-weight:bold"
    color = f";color:{_FAILED}" if row.has_failed else ""
    seconds = "" if row.seconds is None else format_duration(row.seconds)
    detail = escape(_truncate_text(row.detail), quote=False)
    if row.fraction is not None:
        detail = f"{_render_bar(row.fraction)} {detail}"
    cells = (
        f"<td style='{_CELL}{indent}{color}'>{escape(_truncate_text(row.name), quote=False)}</td>"
        f"<td style='{_CELL}{color}'>{detail}</td>"
        f"<td style='{_CELL};color:{_DIM}'>{seconds}</td>"
    )
    return f"<tr>{cells}</tr>" + "".join(map(_render_line, row.lines[-_MAX_LINES:]))


def _render_bar(fraction: float) -> str:
    width = round(100 * max(0.0, min(1.0, fraction)))
    return (
        f"<div style='display:inline-block;width:{_BAR_WIDTH / 2}em;border:1px solid #a0a0a0'>"
        f"<div style='width:{width}%;height:8px;background-color:{_DONE}'></div></div>"
    )


def _render_line(line: str) -> str:
    text = escape(_truncate_text(line), quote=False)
    style = f"{_CELL};padding-left:4em;color:{_DIM};font-family:monospace;font-size:12px"
    return f"<tr><td colspan='3' style='{style}'>{text}</td></tr>"


def _truncate_text(text: str) -> str:
    text = strip_control_sequences(text)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"
