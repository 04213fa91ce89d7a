"""``danlu plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from danlu.cli.options import file_option, format_option, verbosity_options
from danlu.cli.session import session

if TYPE_CHECKING:
    from danlu.cli.terminal import Terminal
    from danlu.commands.plan import Plan, PlannedVertex

__all__ = ["command"]

_ORDER = ("base", "system", "python", "config", "steps")

_MARKS = {"cached": " ", "build": "*", "maybe": "~"}


@click.command(name="plan", short_help="Show what would be built, and why; needs no network.")
@file_option
@click.option("--why", is_flag=True, help="Also what a build would do with each part, and why.")
@format_option("text", "json", "dot")
@verbosity_options
def command(file: str | None, why: bool, form: str) -> None:
    """Show what would be built, and why; needs no network.

    Marks: ? not locked yet, ! not built by this version; with --why also * to be built, ~ to be
    built if what it stands on comes out different, and nothing for what is already there.
    """
    from danlu.commands.plan import plan

    run = session()
    planned = plan(run.project(file), settings=run.settings, why=why)
    if form == "json":
        from danlu.cli.output import print_json

        print_json(_fields(planned), run.terminal)
    elif form == "dot":
        run.terminal.data("\n".join(_dot(planned)))
    else:
        _text(planned, run.terminal, why=why)


def _shown(planned: Plan) -> list[PlannedVertex]:
    return [one for one in planned.vertices if one.kind != "Merge"]


def _text(planned: Plan, terminal: Terminal, *, why: bool) -> None:
    where = f"{planned.file}:{planned.function} for {planned.platform}"
    terminal.data(terminal.out_style(where, "bold"))
    branches: dict[str, list[PlannedVertex]] = {}
    for one in _shown(planned):
        branches.setdefault(one.branch or "other", []).append(one)
    rank = {name: index for index, name in enumerate(_ORDER)}
    for name in sorted(branches, key=lambda name: rank.get(name, len(rank))):
        terminal.data(terminal.out_style(name, "bold"))
        for one in branches[name]:
            _vertex(one, terminal)
    if planned.at_start:
        terminal.data(f"at start: {', '.join(planned.at_start)}")
    _totals(planned, terminal, why=why)


def _vertex(one: PlannedVertex, terminal: Terminal) -> None:
    from danlu.cli.terminal import clean
    from danlu.cli.units import size

    forecast = one.forecast
    lines = ", ".join(one.lines[:3]) + (f" and {len(one.lines) - 3} more" if one.lines[3:] else "")
    text = f"{_mark(one)} {clean(one.name)}"
    if forecast is not None and forecast.size:
        text += f"  {size(forecast.size)}"
    if forecast is not None and forecast.state != "cached" and forecast.download:
        text += f"  {size(forecast.download)} to fetch"
    place = terminal.out_style(f"  {lines}", "dim") if lines else ""
    terminal.data(f"  {text}{place}")
    if one.unresolved and not all(word in one.name for word in one.describes):
        terminal.data(terminal.out_style(f"      {clean(', '.join(one.describes))}", "dim"))
    if forecast is not None and forecast.state != "cached":
        terminal.data(terminal.out_style(f"      {clean(forecast.why)}", "dim"))


def _mark(one: PlannedVertex) -> str:
    if one.unresolved:
        return "?"
    if one.kind == "Unbuilt":
        return "!"
    return _MARKS[one.forecast.state] if one.forecast else " "


def _totals(planned: Plan, terminal: Terminal, *, why: bool) -> None:
    """Talk: what the lock says of the plan, and what a build would do in numbers."""
    if planned.lock == "missing":
        terminal.say("there is no lock for this yet; `danlu lock` or `danlu build` makes it")
    elif planned.lock == "stale":
        terminal.say(f"the lock no longer fits: {planned.stale} changed; `danlu lock` renews it")
    if why:
        states = [one.forecast.state for one in planned.vertices if one.forecast]
        parts = [f"{states.count('cached')} cached", f"{states.count('build')} to build"]
        maybe = states.count("maybe")
        terminal.say(", ".join([*parts, f"{maybe} perhaps"] if maybe else parts))


def _fields(planned: Plan) -> dict[str, Any]:
    return {
        "file": planned.file,
        "function": planned.function,
        "platform": planned.platform,
        "digest": planned.digest,
        "lock": planned.lock,
        "stale": planned.stale,
        "at_start": planned.at_start,
        "vertices": [_vertex_fields(one) for one in planned.vertices],
    }


def _vertex_fields(one: PlannedVertex) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "digest": one.digest,
        "name": one.name,
        "branch": one.branch,
        "kind": one.kind,
        "inputs": one.inputs,
        "lines": one.lines,
    }
    if one.describes:
        fields["describes"] = one.describes
    if one.forecast is not None:
        fields |= {
            "state": one.forecast.state,
            "why": one.forecast.why,
            "size": one.forecast.size,
            "download": one.forecast.download,
        }
    return fields


def _dot(planned: Plan) -> list[str]:
    """The graph in Graphviz's language, edges from what is built first to what stands on it."""
    lines = ["digraph danlu {", "  rankdir=BT;", '  node [shape=box, fontname="sans-serif"];']
    for one in planned.vertices:
        style = ', style="dashed"' if one.unresolved or one.kind == "Unbuilt" else ""
        label = f"{one.name}\n{one.lines[0]}" if one.lines else one.name
        lines.append(f'  "{one.digest[7:19]}" [label={_quoted(label)}{style}];')
    for one in planned.vertices:
        lines += [f'  "{below[7:19]}" -> "{one.digest[7:19]}";' for below in one.inputs]
    return [*lines, "}"]


def _quoted(text: str) -> str:
    """A DOT string: only quotes are special, and a newline is written as an escape."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n") + '"'
