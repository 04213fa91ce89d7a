"""The words of progress that renderers and the log share."""

from __future__ import annotations

from danlu.cli.terminal import clean, columns
from danlu.cli.units import duration, size
from danlu.graph.progress import Event, Finished, Log, Message, Started

__all__ = ["finished_line", "label", "log_line", "shorten"]


def shorten(text: str, room: int) -> str:
    """``text`` in at most ``room`` columns, its end cut."""
    if columns(text) <= room:
        return text
    cut = text[: max(0, room - 1)]
    while columns(cut) > room - 1:
        cut = cut[:-1]
    return cut + "…"


def label(branch: str, name: str) -> str:
    """``[python] numpy``."""
    return f"[{clean(branch)}] {clean(name)}" if branch else clean(name)


def finished_line(event: Finished) -> str:
    """``[python] numpy 1.2 s, 30.1 MB``, ``… cached``, ``… failed: why``."""
    start = label(event.branch, event.name)
    if event.error:
        first = (event.error.splitlines() or [""])[0]
        return f"{start} failed after {duration(event.seconds)}: {clean(first)}"
    if event.cached:
        return f"{start} cached"
    measure = f", {size(event.size)}" if event.size else ""
    return f"{start} {duration(event.seconds)}{measure}"


def log_line(event: Event) -> str | None:
    """How the log file tells of an event; None for what it leaves out."""
    match event:
        case Started():
            return f"{label(event.branch, event.name)} started"
        case Finished():
            return finished_line(event)
        case Log():
            return f"{clean(event.name)} | {clean(event.line)}"
        case Message():
            return clean(event.text)
        case _:
            return None
