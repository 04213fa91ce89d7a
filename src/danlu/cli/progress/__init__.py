"""Progress renderers: what a builder's events look like on stderr.

``auto`` is the live tree on a terminal and plain lines elsewhere. One renderer a file, one line
in :func:`make`.
"""

from __future__ import annotations

from typing import Protocol

from danlu.cli.terminal import Terminal
from danlu.graph.progress import Event

__all__ = ["Renderer", "make"]


class Renderer(Protocol):
    """Shows events; both methods may be called from any thread, ``stop`` more than once."""

    def handle(self, event: Event) -> None:
        """Take one event; must not block."""

    def stop(self) -> None:
        """Leave the terminal as it was found; later events are dropped."""


def make(kind: str, terminal: Terminal, *, verbosity: int = 0) -> Renderer:
    """The renderer ``kind`` (auto, plain, json, quiet)."""
    if kind == "auto":
        kind = "live" if terminal.interactive else "plain"
    if kind == "live":
        from danlu.cli.progress.live import Live

        return Live(terminal, verbosity=verbosity)
    if kind == "json":
        from danlu.cli.progress.jsonlines import JsonLines

        return JsonLines(terminal)
    if kind == "quiet":
        from danlu.cli.progress.quiet import Quiet

        return Quiet()
    from danlu.cli.progress.plain import Plain

    return Plain(terminal, verbosity=verbosity)
