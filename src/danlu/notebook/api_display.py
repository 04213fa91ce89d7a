"""Run ``danlu.train``, ``danlu.attach`` and ``danlu.sweep`` in a notebook, shown like job cells."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from msgspec.structs import replace

from danlu.jobs.report import JobSummary
from danlu.jobs.types import JobResult
from danlu.notebook.context import CellContext
from danlu.notebook.errors import hide_traceback
from danlu.notebook.magics import NotebookContext
from danlu.notebook.submission import attach_and_follow, run_and_follow, run_detached
from danlu.notebook.sweeps import run_sweep
from danlu.submission.options import TrainOptions
from danlu.sweeps.options import SweepOptions
from danlu.sweeps.report import SweepReport
from danlu.sweeps.runner import PointSource


class NotebookRunner:
    """Runs jobs and shows them in the current cell.

    Interrupts are raised immediately. Jobs that were not detached or attached to are stopped in the
    background.
    """

    def __init__(self, context: CellContext) -> None:
        self._context = context

    @classmethod
    def for_shell(cls, shell: Any) -> NotebookRunner:
        """Return a runner for an IPython shell in a kernel."""
        return cls(NotebookContext(shell))

    def hide_traceback(self) -> AbstractContextManager[None]:
        """Let the notebook show our errors without a traceback through danlu."""
        return hide_traceback()

    def train(self, options: TrainOptions) -> tuple[JobSummary, JobResult]:
        """Run a job to its end and return how it ended, even if it failed."""
        options = replace(options, displays=self._context.is_rich)
        outcome = run_and_follow(options, self._context)
        return outcome.summary, outcome.result

    def submit(self, options: TrainOptions) -> str:
        """Start a detached job and return its name."""
        on = f", on={options.on!r}" if options.on else ""
        return run_detached(
            replace(options, tied=False),
            self._context,
            attach_command=lambda name: f"danlu.attach({name!r}{on})",
        )

    def attach(self, name: str, *, on: str = "") -> tuple[JobSummary, JobResult]:
        """Show a job to its end; an interrupt leaves it running."""
        outcome = attach_and_follow(name, self._context, on=on)
        return outcome.summary, outcome.result

    def sweep(
        self,
        sweep: SweepOptions,
        points: PointSource,
        options: TrainOptions,
        *,
        changed: Callable[[SweepReport], object],
    ) -> SweepReport:
        """Run a sweep and return its report."""
        return run_sweep(sweep, points, options, self._context, changed=changed)[0]
