"""The context of a cell: the user's variables, the settings, and the jobs with their views."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from danlu.engine.settings import Settings
from danlu.jobs.types import JobBackend
from danlu.notebook.run_job import JobViewer, ProgressView
from danlu.notebook.types import VariableStore
from danlu.sweeps.report import SweepReport


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
    def search_path(self) -> Sequence[str]:
        """Where modules of the user that replicas may lack are found; the kernel's ``sys.path``."""

    @property
    def working_directory(self) -> str:
        """The directory of replicas; empty for the default of the target."""

    @property
    def is_rich(self) -> bool:
        """Whether outputs may be HTML and images."""

    def view(self, lines: int | None = None) -> JobViewer:
        """Create a view of a job with at most ``lines`` log lines."""

    def sweep_view(self) -> SweepView:
        """Create a view of a sweep."""

    def jobs(self, on: str = "") -> JobBackend:
        """Return the jobs of a target; raises :class:`UsageError` if it is unknown."""
