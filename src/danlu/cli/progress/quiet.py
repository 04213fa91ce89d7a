"""No progress at all."""

from __future__ import annotations

from danlu.graph.progress import Event

__all__ = ["Quiet"]


class Quiet:
    """Shows nothing."""

    def handle(self, event: Event) -> None:
        """Drop the event."""

    def stop(self) -> None:
        """Nothing was shown."""
