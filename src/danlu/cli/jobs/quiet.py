"""Nothing but what the programs wrote."""

from __future__ import annotations

from danlu.cli.jobs.lines import Prefixes, rendered
from danlu.cli.terminal import Terminal
from danlu.jobs.types import JobView, LogLine

__all__ = ["Quiet"]


class Quiet:
    """Programs' lines on stdout."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._prefixes = Prefixes(terminal.out_style, unicode=terminal.out_unicode)

    def view(self, view: JobView) -> None:
        """Only learn how wide names are."""
        self._prefixes.know(one.id for one in view.replicas)

    def line(self, line: LogLine) -> None:
        """Write it."""
        self._terminal.data(rendered(line, self._prefixes))

    def tick(self) -> None:
        """Nothing moves here."""

    def stop(self) -> None:
        """Nothing stays on the screen."""
