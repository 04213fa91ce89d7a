"""What a cell works with: the user's variables, the jobs of this machine, a view of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from danlu.errors import UsageError
from danlu.notebook.attend import Preparing

if TYPE_CHECKING:
    from danlu.commands.settings import Settings
    from danlu.commands.sweepreport import SweepReport
    from danlu.jobs.types import Jobs
    from danlu.notebook.attend import View
    from danlu.notebook.types import Values

__all__ = ["Desk", "Namespace", "SweepView", "search_path"]


class SweepView(Preparing, Protocol):
    """Whoever shows a sweep."""

    def changed(self, report: SweepReport) -> None:
        """A trial changed."""


class Desk(Protocol):
    """Where a cell is run: a notebook, a terminal, a test."""

    @property
    def values(self) -> Values:
        """The user's variables."""

    @property
    def settings(self) -> Settings:
        """Where things lie."""

    @property
    def directory(self) -> Path:
        """Where the notebook is."""

    def view(self, lines: int | None = None) -> View:
        """A new view of a job, with so many lines of logs."""

    def sweep_view(self) -> SweepView:
        """A new view of a sweep."""

    def jobs(self, on: str = "") -> Jobs:
        """The jobs of a place; raises :class:`UsageError` for one that is not known."""


class Namespace:
    """Variables of a namespace (:class:`danlu.notebook.types.Values`)."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def get(self, name: str) -> Any:
        """A variable."""
        if name in self._names:
            return self._names[name]
        known = [one for one in self._names if not one.startswith("_")]
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else "run the cell that sets it first"
        raise UsageError(f"there is no variable {name}", hint=hint)

    def put(self, values: Mapping[str, Any]) -> None:
        """Set variables, all of them or none."""
        self._names.update(values)


def search_path() -> list[str]:
    """Where this kernel finds modules."""
    return [one or os.getcwd() for one in sys.path]
