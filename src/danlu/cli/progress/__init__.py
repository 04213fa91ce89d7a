"""Renderers of a build's progress on stderr: live, plain, JSON, quiet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from danlu.cli.progress.plain import PlainBuildRenderer
from danlu.cli.terminal import Terminal
from danlu.graph.progress import Event
from danlu.project.build_view_model import event_fields

__all__ = ["BuildRenderer", "make_build_renderer"]


class BuildRenderer(Protocol):
    """Shows a build. Both methods may be called from any thread, ``stop`` more than once."""

    def handle(self, event: Event) -> None:
        """Show an event; must not block."""

    def stop(self) -> None:
        """Restore the terminal; later events are dropped."""

    def is_on_screen(self, lines: Sequence[str]) -> bool:
        """Return whether these lines of output are on the screen already."""


def make_build_renderer(
    kind: str, terminal: Terminal, *, verbosity: int = 0, title: str = "building"
) -> BuildRenderer:
    """Return the renderer for ``--progress KIND``; ``title`` stands above a live tree."""
    if kind == "auto":
        kind = "live" if terminal.interactive else "plain"
    if kind == "live":
        from danlu.cli.progress.live import LiveBuildRenderer  # needs threads

        return LiveBuildRenderer(terminal, verbosity=verbosity, title=title)
    if kind == "json":
        return _JsonBuildRenderer(terminal)
    if kind == "quiet":
        return _QuietBuildRenderer()
    return PlainBuildRenderer(terminal, verbosity=verbosity)


class _QuietBuildRenderer:
    """Shows nothing."""

    def handle(self, event: Event) -> None:
        """Drop the event."""

    def stop(self) -> None:
        """Do nothing."""

    def is_on_screen(self, lines: Sequence[str]) -> bool:
        """Return False."""
        return False


class _JsonBuildRenderer:
    """Writes each event as one line of JSON to stderr, because stdout is for the result."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._stopped = False

    def handle(self, event: Event) -> None:
        """Write the event."""
        if not self._stopped:
            self._terminal.write_stderr(msgspec.json.encode(event_fields(event)).decode())

    def stop(self) -> None:
        """Drop later events."""
        self._stopped = True

    def is_on_screen(self, lines: Sequence[str]) -> bool:
        """Return False: the error event is complete without the events before it."""
        return False
