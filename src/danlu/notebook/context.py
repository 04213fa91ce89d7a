"""The context of a cell: the user's variables, the settings, and the jobs with their views."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from danlu.commands.settings import Settings
from danlu.commands.sweep.report import SweepReport
from danlu.errors import UsageError
from danlu.jobs.types import JobBackend
from danlu.notebook.run_job import JobViewer, ProgressView
from danlu.notebook.types import VariableStore
from danlu.util.suggest import did_you_mean


class SweepView(ProgressView, Protocol):
    """Shows a sweep."""

    def update(self, report: SweepReport) -> None:
        """Handle a change of a trial."""


class CellContext(Protocol):
    """Where a cell runs: a notebook, IPython in a terminal, or a test."""

    @property
    def values(self) -> VariableStore:
        """The user's variables."""

    @property
    def settings(self) -> Settings:
        """The settings and directories."""

    @property
    def directory(self) -> Path:
        """The notebook's directory."""

    @property
    def is_rich(self) -> bool:
        """Whether outputs may be HTML and images."""

    def view(self, lines: int | None = None) -> JobViewer:
        """Create a view of a job with at most ``lines`` log lines."""

    def sweep_view(self) -> SweepView:
        """Create a view of a sweep."""

    def jobs(self, on: str = "") -> JobBackend:
        """Return the jobs of a target; raises :class:`UsageError` if it is unknown."""


class UserNamespace:
    """The variables in a namespace (:class:`danlu.notebook.types.VariableStore`)."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def get(self, name: str) -> Any:
        """Return a variable."""
        if name in self._names:
            return self._names[name]
        known = [variable for variable in self._names if not variable.startswith("_")]
        hint = did_you_mean(name, known, otherwise="run the cell that sets it first")
        raise UsageError(f"variable {name} is not defined", hint=hint)

    def put(self, values: Mapping[str, Any]) -> None:
        """Set all variables at once."""
        self._names.update(values)


def search_path() -> list[str]:
    """Return the kernel's ``sys.path`` with the working directory in place of ``""``."""
    return [entry or os.getcwd() for entry in sys.path]
