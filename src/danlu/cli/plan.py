"""``danlu plan``: the build graph as text, JSON or Graphviz."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from danlu.cli.groups import command as declare_command
from danlu.cli.options import (
    file_option,
    format_option,
    on_option,
    progress_option,
    verbosity_options,
)
from danlu.cli.output import print_json
from danlu.cli.session import Session, current_session
from danlu.cli.terminal import Terminal
from danlu.project.build_request import choose_platforms
from danlu.project.build_view_model import sort_branches
from danlu.project.lock import LockOptions, lock
from danlu.project.plan import PlannedVertex, PlanReport, plan_build
from danlu.util.human import format_size
from danlu.util.sanitize import strip_control_sequences

_STATE_MARKS = {"cached": " ", "build": "*", "maybe": "~"}
_MAX_LISTED_LINES = 3

_HELP = """Show what would be built, without using the network.

\b
?  not locked yet
*  will be built (with --why)
~  will be built if one of its inputs changes (with --why)
   (blank) cached
"""


@declare_command("plan", help=_HELP)
@file_option
@click.option(
    "--why", is_flag=True, help="Also show what a build would do with each part, and why."
)
@click.option(
    "--lock", "update", is_flag=True, help="First update danlu.lock, which may use the network."
)
@click.option(
    "--platform",
    metavar="OS/ARCH[,…]",
    default="",
    help="Platform of the image, or several [default: this machine's].",
)
@format_option("text", "json", "dot")
@progress_option
@on_option
@verbosity_options
def command(
    file: str | None, why: bool, update: bool, platform: str, form: str, progress: str
) -> None:
    """Print the plan of each platform."""
    run = current_session()
    platforms = [str(target) for target in choose_platforms(platform)]
    if update:
        _update_lock(run, file, progress, platform)
    project = run.open_project(file)
    reports = [plan_build(project, settings=run.settings, platform=target) for target in platforms]
    if not why:
        reports = [_without_forecasts(report) for report in reports]
    if form == "json":
        fields = [_report_fields(report) for report in reports]
        print_json(fields if len(fields) > 1 else fields[0], run.terminal)
        return
    for report in reports:
        if form == "dot":
            run.terminal.write_stdout("\n".join(_format_dot(report)))
        else:
            _print_report(report, run.terminal, why=why)


def _without_forecasts(report: PlanReport) -> PlanReport:
    vertices = (msgspec.structs.replace(vertex, forecast=None) for vertex in report.vertices)
    return msgspec.structs.replace(report, vertices=tuple(vertices))


def _update_lock(run: Session, file: str | None, progress: str, platform: str) -> None:
    project = run.open_project(file)
    locked = lock(
        project,
        settings=run.settings,
        progress=run.start_progress(progress, title="locking"),
        options=LockOptions(platform=platform),
    )
    run.stop_progress()
    for line in locked.lines:
        run.terminal.info(line)


def _print_report(report: PlanReport, terminal: Terminal, *, why: bool) -> None:
    title = f"{report.file}:{report.function} for {report.platform}"
    terminal.write_stdout(terminal.style_stdout(title, "bold"))
    for source in report.sources:
        callers, places = ", ".join(source.copied_by), ", ".join(source.lines)
        terminal.write_stdout(
            terminal.style_stdout(source.name, "bold")
            + f": {callers} copies files of its result"
            + terminal.style_stdout(f"  {places}", "dim")
        )
        vertices = [vertex for vertex in report.vertices if vertex.source == source.name]
        _print_branches(vertices, terminal, prefix=f"{source.name}: ")
    if report.sources:
        terminal.write_stdout(terminal.style_stdout(report.function, "bold") + ": the image")
    _print_branches([vertex for vertex in report.vertices if not vertex.source], terminal)
    if report.at_start:
        terminal.write_stdout(f"at start: {', '.join(report.at_start)}")
    if why and report.package_settings:
        title = "settings that restricted the Python packages"
        terminal.write_stdout(terminal.style_stdout(title, "bold"))
        for setting in report.package_settings:
            terminal.write_stdout(f"  {strip_control_sequences(str(setting))}")
    _print_totals(report, terminal, why=why)


def _print_branches(
    vertices: Sequence[PlannedVertex], terminal: Terminal, *, prefix: str = ""
) -> None:
    branches: dict[str, list[PlannedVertex]] = {}
    for vertex in vertices:
        if vertex.kind != "Merge":  # merges stack layers and build nothing
            branches.setdefault(vertex.branch or "other", []).append(vertex)
    for name in sort_branches(branches):
        terminal.write_stdout(terminal.style_stdout(f"{prefix}{name}", "bold"))
        for vertex in branches[name]:
            shown = vertex.name.removeprefix(prefix)
            _print_vertex(msgspec.structs.replace(vertex, name=shown), terminal)


def _print_vertex(vertex: PlannedVertex, terminal: Terminal) -> None:
    forecast = vertex.forecast
    hidden = len(vertex.lines) - _MAX_LISTED_LINES
    lines = ", ".join(vertex.lines[:_MAX_LISTED_LINES])
    lines += f" and {hidden} more" if hidden > 0 else ""
    text = f"{_vertex_mark(vertex)} {strip_control_sequences(vertex.name)}"
    if forecast is not None and forecast.size:
        text += f"  {format_size(forecast.size)}"
    if forecast is not None and forecast.state != "cached" and forecast.download:
        text += f"  {format_size(forecast.download)} to download"
    suffix = terminal.style_stdout(f"  {lines}", "dim") if lines else ""
    terminal.write_stdout(f"  {text}{suffix}")
    if vertex.needs_lock and not all(word in vertex.name for word in vertex.describes):
        details = strip_control_sequences(", ".join(vertex.describes))
        terminal.write_stdout(terminal.style_stdout(f"      {details}", "dim"))
    if forecast is not None and forecast.state != "cached":
        terminal.write_stdout(
            terminal.style_stdout(f"      {strip_control_sequences(forecast.why)}", "dim")
        )


def _vertex_mark(vertex: PlannedVertex) -> str:
    if vertex.needs_lock:
        return "?"
    return _STATE_MARKS[vertex.forecast.state] if vertex.forecast else " "


def _print_totals(report: PlanReport, terminal: Terminal, *, why: bool) -> None:
    """Print on stderr whether the lock is current, and what a build would do in numbers."""
    command = report.lock_command
    if report.lock == "missing" and report.locked_platforms:
        terminal.info(f"not locked for {report.platform}; run `{command}`")
    elif report.lock == "missing":
        terminal.info(f"no lockfile yet; run `{command}` or `danlu build` to create it")
    elif report.lock == "stale":
        terminal.info(
            f"danlu.lock is out of date ({report.stale} changed); run `{command}` to update it"
        )
    if why:
        states = [vertex.forecast.state for vertex in report.vertices if vertex.forecast]
        parts = [f"{states.count('cached')} cached", f"{states.count('build')} to build"]
        if "maybe" in states:
            parts.append(f"{states.count('maybe')} possibly")
        terminal.info(", ".join(parts))
    for line in report.downloads:
        terminal.info(line)


def _report_fields(report: PlanReport) -> dict[str, Any]:
    return {
        "file": report.file,
        "function": report.function,
        "platform": report.platform,
        "digest": report.digest,
        "lock": report.lock,
        "stale": report.stale,
        "at_start": report.at_start,
        "sources": [
            {"function": source.name, "copied_by": source.copied_by, "lines": source.lines}
            for source in report.sources
        ],
        "package_settings": [
            {"name": setting.name, "value": setting.value, "origin": setting.origin}
            for setting in report.package_settings
        ],
        "vertices": [_vertex_fields(vertex) for vertex in report.vertices],
    }


def _vertex_fields(vertex: PlannedVertex) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "digest": vertex.digest,
        "name": vertex.name,
        "branch": vertex.branch,
        "kind": vertex.kind,
        "inputs": vertex.inputs,
        "lines": vertex.lines,
    }
    if vertex.source:
        fields["source"] = vertex.source
    if vertex.describes:
        fields["describes"] = vertex.describes
    if vertex.forecast is not None:
        fields |= {
            "state": vertex.forecast.state,
            "why": vertex.forecast.why,
            "size": vertex.forecast.size,
            "download": vertex.forecast.download,
        }
    return fields


def _format_dot(report: PlanReport) -> list[str]:
    """Format the graph for Graphviz, with edges from inputs to what is built on them."""
    lines = ["digraph danlu {", "  rankdir=BT;", '  node [shape=box, fontname="sans-serif"];']
    for vertex in report.vertices:
        style = ', style="dashed"' if vertex.needs_lock else ""
        label = f"{vertex.name}\n{vertex.lines[0]}" if vertex.lines else vertex.name
        lines.append(f'  "{vertex.digest[7:19]}" [label={_quote_dot(label)}{style}];')
    for vertex in report.vertices:
        lines += [f'  "{below[7:19]}" -> "{vertex.digest[7:19]}";' for below in vertex.inputs]
    return [*lines, "}"]


def _quote_dot(text: str) -> str:
    """Return a DOT string, with quotes and newlines escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n") + '"'
