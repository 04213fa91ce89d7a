"""What training jobs look like in a terminal: merged logs, the live table, the report.

One renderer a file, one line in :func:`make`. What programs wrote is data and goes to stdout,
whichever renderer is chosen; it tells of everything else on stderr.
"""

from __future__ import annotations

from typing import Protocol

from danlu.cli.terminal import Terminal
from danlu.jobs.types import JobView, LogLine

__all__ = ["Renderer", "make"]


class Renderer(Protocol):
    """Shows a job while it runs; called from one thread."""

    def view(self, view: JobView) -> None:
        """The job changed."""

    def line(self, line: LogLine) -> None:
        """A replica wrote a line."""

    def tick(self) -> None:
        """Some tenths of a second have passed."""

    def stop(self) -> None:
        """Leave the terminal as it was found; may be called twice."""


def make(kind: str, terminal: Terminal) -> Renderer:
    """The renderer ``kind`` (auto, plain, json, quiet)."""
    if kind == "auto":
        kind = "live" if terminal.interactive and not terminal.quiet else "plain"
    if kind == "live":
        from danlu.cli.jobs.live import Live

        return Live(terminal)
    if kind == "json":
        from danlu.cli.jobs.jsonlines import JsonLines

        return JsonLines(terminal)
    if kind == "quiet":
        from danlu.cli.jobs.quiet import Quiet

        return Quiet(terminal)
    from danlu.cli.jobs.plain import Plain

    return Plain(terminal)
