"""What a user should know of a job that runs, said once each."""

from __future__ import annotations

from danlu.cli.messages import warn
from danlu.cli.terminal import Terminal
from danlu.jobs.types import JobView

__all__ = ["Warned"]


class Warned:
    """Says the warnings of a job's views on stderr, those that are new."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._said: set[str] = set()

    def view(self, view: JobView) -> None:
        """Say what was not said yet."""
        for text in view.warnings:
            if text not in self._said:
                self._said.add(text)
                warn(text, self._terminal)
