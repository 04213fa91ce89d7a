"""The replicas of a job over time: attempts, restarts, and why each attempt ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from danlu.jobs.local.log_index import AttemptSpan
from danlu.jobs.types import JobView, ReplicaView
from danlu.submission.job_view_model import StateStyle, state_style
from danlu.training.types import ReplicaId
from danlu.ui.html import Html, element, render_wide
from danlu.util.human import format_duration

_LABEL, _WIDTH, _ROW, _BAR = 110, 900, 20, 12


class TimelineBar(msgspec.Struct, frozen=True):
    """An attempt at a replica, in seconds since the epoch; ``label`` says how it ended."""

    begin: float
    end: float
    style: StateStyle
    label: str


def list_bars(
    replica: ReplicaView, spans: Sequence[AttemptSpan], now: datetime
) -> list[TimelineBar]:
    """Return the attempts of a replica: the last one by its view, others by what they printed."""
    bars = [
        TimelineBar(
            span.begin.timestamp(),
            span.end.timestamp(),
            "attention",
            f"attempt {span.attempt}: restarted after"
            f" {format_duration((span.end - span.begin).total_seconds())} of output",
        )
        for span in spans
        if span.attempt < replica.attempt
    ]
    if replica.started is not None:
        end = replica.finished or now
        reason = replica.waits or replica.message or replica.reason
        code = "" if replica.exit_code is None else f", exit code {replica.exit_code}"
        seconds = format_duration((end - replica.started).total_seconds())
        label = f"attempt {replica.attempt}: {replica.state} after {seconds}{code}"
        bars.append(
            TimelineBar(
                replica.started.timestamp(),
                end.timestamp(),
                state_style(replica.state),
                f"{label}: {reason}" if reason and replica.state != "Running" else label,
            )
        )
    return bars


def render_timeline(
    view: JobView,
    replicas: Sequence[ReplicaView],
    spans: Mapping[ReplicaId, Sequence[AttemptSpan]],
) -> Html:
    """Return the picture of these replicas; empty if none has started.

    ``spans`` are the attempts of those that were restarted.
    """
    now = datetime.now(UTC)
    rows = [(replica, list_bars(replica, spans.get(replica.id, ()), now)) for replica in replicas]
    bars = [bar for _, found in rows for bar in found]
    if not bars:
        return Html()
    began = min(bar.begin for bar in bars)
    began = min(began, view.created.timestamp()) if view.created else began
    length = max(max(bar.end for bar in bars) - began, 0.001)
    scale = (_WIDTH - _LABEL - 10) / length
    height = _ROW * len(rows) + 20
    shapes = [
        _render_row(str(replica.id), found, number, began, scale)
        for number, (replica, found) in enumerate(rows)
    ]
    axis = [
        _render_text(_LABEL, height - 6, "0 s"),
        _render_text(_WIDTH - 10, height - 6, format_duration(length), anchor="end"),
    ]
    picture = element(
        "svg",
        shapes,
        axis,
        class_="timeline",
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        aria_label="Attempts of the replicas over time",
    )
    return element("section", element("h2", "Timeline"), render_wide(picture, "Timeline"))


def _render_row(
    name: str, bars: Sequence[TimelineBar], number: int, began: float, scale: float
) -> Html:
    top = _ROW * number
    shapes = [
        element(
            "rect",
            element("title", f"{name}, {bar.label}"),
            x=f"{_LABEL + (bar.begin - began) * scale:.1f}",
            y=top + 4,
            width=f"{max(1.5, (bar.end - bar.begin) * scale):.1f}",
            height=_BAR,
            rx=2,
            class_=f"bar {bar.style}",
        )
        for bar in bars
    ]
    restarts = len(bars) - 1
    suffix = f" ↻{restarts}" if restarts > 0 else ""
    return element("g", _render_text(0, top + 14, f"{name}{suffix}"), shapes)


def _render_text(x: float, y: float, text: str, *, anchor: str = "start") -> Html:
    return element("text", text, x=x, y=y, text_anchor=anchor)
