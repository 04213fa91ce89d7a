"""What is left on the screen when a build is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from danlu.cli.terminal import clean
from danlu.cli.units import duration, plural, short_digest, size

if TYPE_CHECKING:
    from danlu.cli.session import Session
    from danlu.commands.buildreport import BuildReport

__all__ = ["build_summary"]


def build_summary(report: BuildReport, run: Session) -> None:
    """Write what was built: one line, and one for each change of the lock and each output."""
    terminal = run.terminal
    if run.progress == "json":
        _summary_event(report, run)
        return
    for line in report.lock_changes:
        terminal.say(terminal.style(clean(line), "dim"))
    for place in report.outputs:
        verb = "pushed" if place in report.names else "wrote"
        terminal.say(f"{verb} {clean(place)}")
    mark = "✓ " if terminal.unicode and terminal.interactive else ""
    terminal.say(terminal.style(mark, "green") + _headline(report, terminal.style))


def _headline(report: BuildReport, style: Any) -> str:
    names = ", ".join(clean(name) for name in report.names)
    image = style(short_digest(report.config), "bold") + (f" {names}" if names else "")
    if report.unchanged:
        return f"up to date: {image} in {duration(report.seconds)}"
    fresh = [one for one in report.vertices if not one.cached]
    cached = len(report.vertices) - len(fresh)
    counts = f"{len(fresh)} built, {cached} cached" if report.vertices else "nothing to do"
    added = sum(one.size for one in fresh)
    new = f", {size(added)} new" if 0 < added < report.size else ""
    whole = f"{plural(len(report.layers), 'layer')}, {size(report.size)}{new}"
    return f"built {image} in {duration(report.seconds)}: {counts}; {whole}"


def _summary_event(report: BuildReport, run: Session) -> None:
    import json

    event = {
        "type": "built",
        "config": report.config,
        "digest": report.digest,
        "names": report.names,
        "size": report.size,
        "layers": len(report.layers),
        "cached": sum(one.cached for one in report.vertices),
        "vertices": len(report.vertices),
        "unchanged": report.unchanged,
        "seconds": round(report.seconds, 3),
    }
    run.terminal.insist(json.dumps(event))
