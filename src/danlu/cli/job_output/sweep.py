"""Run a sweep in the foreground and print its trials."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Any

import anyio
from anyio import CancelScope
from anyio.abc import TaskGroup

from danlu.cli.job_output.foreground import stop_signals
from danlu.cli.job_output.table import state_style
from danlu.cli.output import TableCell, print_json, print_table
from danlu.cli.session import Session
from danlu.cli.terminal import Terminal
from danlu.errors import DanluError
from danlu.jobs.backends import select_backend
from danlu.jobs.types import JobBackend, Submission, longest_grace
from danlu.sweeps.options import (
    SweepOptions,
    apply_target_defaults,
    create_point_source,
    execute_sweep,
)
from danlu.sweeps.report import SweepReport, SweepTrial
from danlu.sweeps.view_model import (
    axis_names,
    count_finished,
    describe_best,
    format_outcome,
    format_point,
    trial_row,
)


def run_sweep(
    session: Session, submission: Submission, options: SweepOptions, *, progress: str
) -> int:
    """Run the trials until the sweep ends or Ctrl-C, print the result, return the exit code."""
    terminal = session.terminal
    printer = SweepProgressPrinter(terminal, as_json=progress == "json")
    options = apply_target_defaults(options, session.on)
    sweep = _ForegroundSweep(submission, options, printer.update, terminal.info)
    backend = select_backend(session.on, session.settings)
    number = anyio.run(partial(sweep.run, backend))
    report = sweep.report
    if report is not None:
        if progress == "json":
            print_json(sweep_fields(report), terminal)
        else:
            print_sweep_report(report, terminal)
        terminal.write_stderr(describe_best(report))
    if number:
        terminal.write_stderr("interrupted" if number == signal.SIGINT else "terminated")
        return 128 + number
    return 0 if report is None else report.exit_code


class _ForegroundSweep:
    """A sweep that runs until it ends or a signal stops it; ``report`` is the latest."""

    def __init__(
        self,
        submission: Submission,
        options: SweepOptions,
        on_change: Callable[[SweepReport], None],
        info: Callable[[str], None],
    ) -> None:
        self.report: SweepReport | None = None
        self._submission = submission
        self._options = options
        self._on_change = on_change
        self._info = info
        self._points = create_point_source(options, name=submission.job.name)
        self._errors: list[DanluError] = []

    async def run(self, backend: JobBackend) -> int:
        """Return the signal that stopped the sweep, or 0; a second signal kills its jobs."""
        received = 0
        scope = anyio.CancelScope()
        with anyio.open_signal_receiver(*stop_signals()) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._run_trials, backend, tasks, scope)
                async for number in signals:
                    if received:
                        await self._kill_jobs(backend)
                        continue
                    received = number
                    limit = ceil(longest_grace(self._submission.job))
                    self._info(
                        f"stopping: waiting up to {limit} s for the jobs of the sweep to save;"
                        " press Ctrl-C again to kill now"
                    )
                    scope.cancel()
        if self._errors:
            raise self._errors[0]
        return int(received)

    async def _run_trials(self, backend: JobBackend, tasks: TaskGroup, scope: CancelScope) -> None:
        try:
            with scope:
                self.report = await execute_sweep(
                    self._options,
                    self._points,
                    base=self._submission,
                    jobs=backend,
                    changed=self._update_report,
                )
        except DanluError as error:
            # Raised by `run`: the task group would wrap it in an exception group.
            self._errors.append(error)
        tasks.cancel_scope.cancel()

    async def _kill_jobs(self, backend: JobBackend) -> None:
        for trial in self.report.trials if self.report is not None else ():
            # Another process may have removed the job meanwhile.
            with suppress(DanluError):
                if not (await backend.view(trial.name)).finished:
                    await backend.stop(trial.name, grace=0)

    def _update_report(self, report: SweepReport) -> None:
        self.report = report
        self._on_change(report)


class SweepProgressPrinter:
    """Prints each trial on stderr when it starts and when it ends.

    ``as_json`` writes events of type ``trial`` instead, one a line.
    """

    def __init__(self, terminal: Terminal, *, as_json: bool = False) -> None:
        self._terminal = terminal
        self._json = as_json
        self._printed: dict[int, str] = {}

    def update(self, report: SweepReport) -> None:
        """Print the trials whose state changed."""
        for trial in report.trials:
            if self._printed.get(trial.number) != trial.state:
                self._printed[trial.number] = trial.state
                self._print_trial(trial, report)

    def _print_trial(self, trial: SweepTrial, report: SweepReport) -> None:
        if self._json:
            self._terminal.write_stderr(json.dumps({"type": "trial", **_trial_fields(trial)}))
            return
        styles = filter(None, [state_style(trial.state)])
        outcome = self._terminal.style(format_outcome(trial, report), *styles)
        count = f"[{count_finished(report)}/{report.total}]"
        self._terminal.info(f"{count} {trial.name}  {format_point(trial)}  {outcome}")


def print_sweep_report(report: SweepReport, terminal: Terminal) -> None:
    """Write a table of all trials to stdout, the best first."""
    axes = axis_names(report)
    head = ("JOB", *axes, "STATE", report.measure.title.upper(), "DURATION")
    # Of these only the state is not a number.
    state, right = len(axes) + 1, [*range(1, len(axes) + 1), len(axes) + 2, len(axes) + 3]
    rows: list[list[str | TableCell]] = []
    for trial in report.rank_trials():
        row: list[str | TableCell] = [*trial_row(trial, report, axes)]
        row[state] = TableCell(str(row[state]), state_style(trial.state))
        rows.append(row)
    print_table(head, rows, terminal, right=right)


def sweep_fields(report: SweepReport) -> dict[str, Any]:
    """Return a sweep as JSON, the best trial first."""
    return {
        "metric": report.measure.metric,
        "goal": report.measure.goal,
        "best": None if report.best is None else report.best.name,
        "trials": [_trial_fields(trial) for trial in report.rank_trials()],
    }


def _trial_fields(trial: SweepTrial) -> dict[str, Any]:
    names = ("number", "name", "state", "value", "seconds", "reason")
    return {"point": dict(trial.point), **{name: getattr(trial, name) for name in names}}
