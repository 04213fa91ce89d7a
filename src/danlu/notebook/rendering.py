"""Render a job as plain text and as HTML: self-contained, without scripts, of bounded size.

Jupyter sanitizes the HTML of untrusted notebooks, which every reopened notebook may be. The
sanitizer keeps inline styles and ``data:`` images, and removes scripts, style sheets and inline
SVG. Colours are readable on white and on black. Attributes are in single quotes, which need no
escaping in JSON.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from zlib import crc32

from danlu.jobs.types import ReplicaView
from danlu.notebook.build_view import render_build_html, render_build_text
from danlu.submission.job_view_model import (
    REPLICA_COLUMNS,
    JobSnapshot,
    MetricSeries,
    OutputLine,
    StateStyle,
    format_metric,
    progress_bar,
    replica_row,
    state_style,
    summarize_hidden,
    time_left,
    visible_replicas,
)
from danlu.submission.metric_charts import render_svg
from danlu.util.human import format_duration
from danlu.util.sanitize import strip_control_sequences

#: The maximum size of one display message. With four messages a second this stays far below
#: Jupyter's default limit of 1 MB/s (``iopub_data_rate_limit``).
MAX_BYTES = 48 << 10

#: The part of a message that log lines may take, and the part reserved for them.
_MAX_LOG_BYTES, _MIN_LOG_BYTES = 24 << 10, 4 << 10

_MAX_TEXT_BYTES = 12 << 10

#: The maximum number of replicas shown in a table.
MAX_ROWS = 40

#: Rows of the replica table and number of charts; the first combination that fits is used.
_LEVELS_OF_DETAIL = ((MAX_ROWS, 4), (16, 2), (4, 0))

_MAX_LINE_LENGTH, _MAX_CELL_LENGTH = 1000, 120

#: Limits of the plain-text form.
_TEXT_ROWS, _TEXT_LINES, _TEXT_LINE_LENGTH, _TEXT_SUMMARY_LENGTH = 20, 20, 160, 1000

_COLORS: dict[StateStyle, str] = {
    "success": "#2e8b4f",
    "error": "#d0454c",
    "active": "#2f81d6",
    "attention": "#b8720a",
    "plain": "#b8720a",
    "muted": "#767676",
}
_PREFIX_COLORS = ("#14868c", "#2e8b4f", "#b8720a", "#2f81d6", "#9a5fd0", "#c2478f")
_DIM = "#767676"
_BORDER = "1px solid #a0a0a0"
_CELL = "padding:1px 12px 1px 0;text-align:left"
_MONO = "font-family:monospace;font-size:12px;line-height:1.35"


def render_mime_bundle(job: JobSnapshot) -> dict[str, str]:
    """Render a job by MIME type, at most :data:`MAX_BYTES` bytes of JSON."""
    text = render_text(job)
    while json_size(text) > _MAX_TEXT_BYTES:
        text = text[: len(text) * 3 // 4]
    return {"text/html": render_html(job, MAX_BYTES - 256 - json_size(text)), "text/plain": text}


def json_size(text: str) -> int:
    """Return the number of bytes of a text as JSON."""
    return len(json.dumps(text, ensure_ascii=False).encode(errors="replace"))


# -- plain text -----------------------------------------------------------------------------------


def render_text(job: JobSnapshot) -> str:
    """Render a job as plain text, for consoles and for what the notebook file stores."""
    rows = [_replica_cells(replica) for replica in visible_replicas(job.replicas, _TEXT_ROWS)]
    seconds = "" if job.seconds is None else format_duration(job.seconds)
    parts = [
        " ".join(filter(None, (job.name, job.kind, job.state, seconds))),
        *(f"! {strip_control_sequences(note)[:_TEXT_LINE_LENGTH]}" for note in job.notes[:5]),
        *render_build_text(job.build[:_TEXT_ROWS]),
        *(render_text_table(REPLICA_COLUMNS, rows) if rows else ()),
        summarize_hidden(job.replicas, _TEXT_ROWS),
        _render_text_progress(job),
        *prefix_lines(job.lines[-_TEXT_LINES:], job.written),
        strip_control_sequences(job.summary)[:_TEXT_SUMMARY_LENGTH],
        f"complete logs: {job.logs}" if job.summary and job.logs else "",
    ]
    return "\n".join(filter(None, parts))


def _replica_cells(replica: ReplicaView) -> list[str]:
    return [cell[:_MAX_CELL_LENGTH] for cell in replica_row(replica)]


def render_text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]


def _render_text_progress(job: JobSnapshot) -> str:
    progress = job.progress
    if progress is None:
        return ""
    parts = []
    if progress.percentage is not None:
        parts.append(f"{progress_bar(progress.percentage)} {progress.percentage} %")
    if not job.summary:
        parts.append(time_left(progress))
    for name, value in list(progress.metrics.items())[:_TEXT_ROWS]:
        parts.append(f"{strip_control_sequences(name)[:40]} {format_metric(value)}")
    return "  ".join(filter(None, parts))


def prefix_lines(lines: Sequence[OutputLine], written: int) -> list[str]:
    """Prefix lines with their source; the first line says how many of ``written`` came before."""
    width = max((len(line.source) for line in lines), default=0)
    before = written - len(lines)
    head = [f"… {before:,} earlier lines"] if before > 0 else []
    return head + [
        f"{line.source.ljust(width)} │ {line.text[:_TEXT_LINE_LENGTH]}".rstrip() for line in lines
    ]


# -- HTML -----------------------------------------------------------------------------------------


def render_html(job: JobSnapshot, max_bytes: int = MAX_BYTES) -> str:
    """Render a job in ``max_bytes`` bytes of JSON; log lines fill the room that remains."""
    footer = _render_footer(job)
    max_bytes -= json_size(footer) + 256
    for rows, charts in _LEVELS_OF_DETAIL:
        above_logs = _render_above_logs(job, rows, charts)
        if json_size(above_logs) <= max_bytes - _MIN_LOG_BYTES:
            break
    logs = _render_logs(job, min(max_bytes - json_size(above_logs), _MAX_LOG_BYTES))
    return f"<div class='danlu-job' style='max-width:72em'>{above_logs}{logs}{footer}</div>"


def _render_above_logs(job: JobSnapshot, rows: int, charts: int) -> str:
    return "".join(
        (
            _render_head(job),
            _render_notes(job),
            render_build_html(job.build, rows),
            _render_replicas(job, rows),
            _render_progress(job, charts),
            _render_charts(job, charts),
        )
    )


def escape_text(text: str, max_length: int = 400) -> str:
    """Strip control sequences from a text, truncate it and escape it for HTML."""
    text = strip_control_sequences(text)
    return escape(text if len(text) <= max_length else f"{text[: max_length - 1]}…", quote=False)


def colorize(text: str, state: str, *, escaped: bool = False) -> str:
    """Return a text in the colour of a state; ``escaped`` if it is HTML already."""
    inner = text if escaped else escape_text(text)
    return f"<span style='color:{_COLORS[state_style(state)]}'>{inner}</span>"


def dim(html: str) -> str:
    """Return HTML in a less prominent colour."""
    return f"<span style='color:{_DIM}'>{html}</span>"


def _render_head(job: JobSnapshot) -> str:
    parts = [f"<b>{escape_text(job.name)}</b>"]
    if job.kind:
        parts.append(dim(escape_text(job.kind)))
    parts.append(colorize(job.state, job.state))
    if job.seconds is not None:
        parts.append(dim(format_duration(job.seconds)))
    return f"<div>{' '.join(parts)}</div>"


def _render_notes(job: JobSnapshot) -> str:
    color = _COLORS["attention"]
    return "".join(
        f"<div style='color:{color}'>⚠ {escape_text(note, 200)}</div>" for note in job.notes[:5]
    )


def _render_replicas(job: JobSnapshot, max_rows: int) -> str:
    if not job.replicas:
        return ""
    shown = visible_replicas(job.replicas, max_rows)
    rows = [_render_replica(replica, job.links.get(str(replica.id), "")) for replica in shown]
    hidden = summarize_hidden(job.replicas, max_rows)
    table = render_html_table(REPLICA_COLUMNS, rows)
    return table + (f"<div>{dim(escape_text(hidden))}</div>" if hidden else "")


def _render_replica(replica: ReplicaView, link: str) -> list[str]:
    cells = list(map(escape_text, _replica_cells(replica)))
    cells[1] = colorize(cells[1], replica.state, escaped=True)
    if link:
        cells[0] = f"<a href='{escape(link)}' target='_blank'>{cells[0]}</a>"
    return cells


def render_html_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a table; its cells are HTML."""
    above = "".join(f"<th style='{_CELL};color:{_DIM}'>{title}</th>" for title in head)
    below = "".join(
        "<tr>" + "".join(f"<td style='{_CELL}'>{cell}</td>" for cell in row) + "</tr>"
        for row in body
    )
    style = "margin:4px 0;border-collapse:collapse"
    return (
        f"<div style='overflow-x:auto'><table style='{style}'><thead><tr>{above}</tr></thead>"
        f"<tbody>{below}</tbody></table></div>"
    )


def _render_progress(job: JobSnapshot, charts: int) -> str:
    progress = job.progress
    if progress is None:
        return ""
    parts = []
    if progress.percentage is not None:
        width = max(0, min(100, progress.percentage))
        bar = f"<div style='width:{width}%;height:8px;background-color:{_COLORS['success']}'></div>"
        parts.append(
            f"<div style='display:inline-block;width:16em;border:{_BORDER}'>{bar}</div>"
            f" {progress.percentage} %"
        )
    if time_left(progress) and not job.summary:
        parts.append(dim(time_left(progress)))
    charted = {series.name for series in job.series[:charts]}
    others = [name for name in progress.metrics if name not in charted][:20]
    parts += [f"{escape_text(name, 40)} {format_metric(progress.metrics[name])}" for name in others]
    return f"<div style='margin:4px 0'>{' &ensp; '.join(parts)}</div>"


def _render_charts(job: JobSnapshot, count: int) -> str:
    charts = "".join(map(_render_chart, job.series[:count]))
    return f"<div>{charts}</div>" if charts else ""


def _render_chart(series: MetricSeries) -> str:
    data = b64encode(render_svg(series).encode()).decode()
    name = strip_control_sequences(series.name)[:40]
    title = escape(f"{name} over time, now {format_metric(series.last)}")
    return (
        f"<img class='danlu-curve' alt='{title}' title='{title}' style='margin:4px 12px 4px 0'"
        f" src='data:image/svg+xml;base64,{data}'>"
    )


def _render_logs(job: JobSnapshot, room: int) -> str:
    """Render the newest log lines that fit, in a box that is scrolled to its end."""
    if not job.lines:
        return ""
    width = max(len(line.source) for line in job.lines)
    kept: list[str] = []
    for line in reversed(job.lines):
        rendered = _render_line(line, width)
        room -= json_size(rendered)
        if room < 0:
            break
        kept.append(rendered)
    before = job.written - len(kept)
    head = dim(f"… {before:,} earlier lines") + "\n" if before > 0 else ""
    # A reversed column is scrolled to its end without any script.
    box = (
        f"display:flex;flex-direction:column-reverse;max-height:20em;overflow:auto;"
        f"border:{_BORDER};padding:2px 8px;margin:4px 0"
    )
    pre = f"margin:0;padding:0;white-space:pre-wrap;overflow-wrap:break-word;{_MONO}"
    body = f"<pre style='{pre}'>{head}{''.join(reversed(kept))}</pre>"
    # The inner div preserves the height of the lines: JupyterLab makes every pre scrollable, so
    # the pre alone would shrink to the size of the box and show the oldest lines.
    return f"<div class='danlu-logs' style='{box}'><div>{body}</div></div>"


def _render_line(line: OutputLine, width: int) -> str:
    source = escape(line.source.ljust(width), quote=False)
    prefix = f"<span style='color:{_prefix_color(line.source)}'>{source} │</span>"
    return f"{prefix} {escape_text(line.text, _MAX_LINE_LENGTH)}\n"


def _prefix_color(source: str) -> str:
    """Return a colour that is stable across runs and differs between neighbouring replicas."""
    replica_type, _, index = source.rpartition("-")
    number = crc32(replica_type.encode()) + (int(index) if index.isdigit() else 0)
    return _PREFIX_COLORS[number % len(_PREFIX_COLORS)]


def _render_footer(job: JobSnapshot) -> str:
    if not job.summary:
        return ""
    color = _COLORS[state_style(job.state)]
    parts = [f"<div style='color:{color}'>{escape_text(job.summary, 1000)}</div>"]
    if job.logs:
        command = f"danlu jobs logs {job.name}"
        parts.append(
            f"<div>{dim('complete logs:')} <code>{escape_text(job.logs, 500)}</code>"
            f" {dim('or')} <code>{escape_text(command)}</code></div>"
        )
    return "".join(parts)
