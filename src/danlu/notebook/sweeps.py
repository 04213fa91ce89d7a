"""Run a sweep for a cell and show its trials: a live table in a notebook, lines on a terminal."""

from __future__ import annotations

import html
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TextIO

import anyio
from msgspec.structs import replace

from danlu.graph.progress import Event
from danlu.jobs.types import JobBackend, JobResult, Submission
from danlu.notebook import background_loop
from danlu.notebook.build_view import (
    BuildTracker,
    format_build_event,
    render_build_html,
    render_build_text,
)
from danlu.notebook.context import CellContext, SweepView
from danlu.notebook.errors import CellFailed
from danlu.notebook.rendering import (
    MAX_BYTES,
    colorize,
    dim,
    json_size,
    prefix_lines,
    render_html_table,
    render_text_table,
)
from danlu.notebook.submission import NO_FILES, prepare_submission
from danlu.project.build_view_model import BuildRow
from danlu.submission.job_view_model import OutputLine
from danlu.submission.options import TrainOptions
from danlu.sweeps.options import SweepOptions, create_point_source, execute_sweep
from danlu.sweeps.report import SweepReport, SweepTrial
from danlu.sweeps.runner import PointSource
from danlu.sweeps.view_model import (
    axis_names,
    count_finished,
    describe_best,
    format_outcome,
    format_point,
    trial_row,
)
from danlu.util.sanitize import strip_control_sequences

#: The maximum number of rows; the first that fits the message is used.
_ROW_LIMITS = (60, 20, 5, 1)

#: Maximum length of a table cell and of the final sentence, and maximum number of columns.
_MAX_CELL_LENGTH, _MAX_SUMMARY_LENGTH, _MAX_AXES = 60, 1000, 12

_DRAW_INTERVAL = 0.25

#: How many lines of build output to show.
_MAX_LINES = 40


def run_sweep_cell(
    sweep: SweepOptions,
    options: TrainOptions,
    context: CellContext,
    *,
    files: AbstractContextManager[object],
) -> JobResult | None:
    """Run a cell's sweep, show it, and return the result of the best job if the cell returns any.

    Raises :class:`CellFailed` if a job failed, or if no job reported the metric.
    """
    points = create_point_source(sweep, name=options.name)
    # A cell is run again and again: replace the finished jobs of a sweep with the same name.
    sweep = replace(sweep, replace=bool(options.name))
    report, result = run_sweep(sweep, points, options, context, files=files)
    if report.exit_code:
        raise _sweep_error(report)
    return result


def run_sweep(
    sweep: SweepOptions,
    points: PointSource,
    options: TrainOptions,
    context: CellContext,
    *,
    files: AbstractContextManager[object] = NO_FILES,
    changed: Callable[[SweepReport], object] = lambda report: None,
) -> tuple[SweepReport, JobResult | None]:
    """Run a sweep, show it, and return the result of the best job too if the options ask for it.

    ``changed`` is called after every change of a trial. An interrupt stops the sweep's jobs.
    """
    jobs, view = context.jobs(options.on), context.sweep_view()

    async def act() -> tuple[SweepReport, JobResult | None]:
        with files:
            base = await prepare_submission(options, context.settings, view, jobs=jobs)
            report = await _run_trials(
                sweep, points, base=base, jobs=jobs, view=view, changed=changed
            )
        if options.value == "none" or report.best is None or report.exit_code:
            return report, None
        return report, await jobs.result(report.best.name)

    return background_loop.run(act, tick=view.tick, stopping=lambda: view.phase("Stopping"))


async def _run_trials(
    sweep: SweepOptions,
    points: PointSource,
    *,
    base: Submission,
    jobs: JobBackend,
    view: SweepView,
    changed: Callable[[SweepReport], object],
) -> SweepReport:
    def update(report: SweepReport) -> None:
        view.update(report)
        changed(report)

    view.phase("Running", name=base.job.name)
    try:
        report = await execute_sweep(sweep, points, base=base, jobs=jobs, changed=update)
    except anyio.get_cancelled_exc_class():
        view.finish("Stopped", "interrupted: the running jobs have been stopped")
        raise
    except Exception as error:
        view.finish("Failed", str(error))
        raise
    view.finish("Failed" if report.exit_code else "Succeeded", describe_best(report))
    return report


def _sweep_error(report: SweepReport) -> CellFailed:
    failed = [trial for trial in report.trials if trial.state in ("Failed", "Stopped")]
    if not failed:
        return CellFailed(describe_best(report), hint="report the metric with danlu.report(loss=…)")
    return CellFailed(
        f"{len(failed)} of {len(report.trials)} jobs of the sweep failed",
        details=tuple(f"{trial.name} {trial.state}: {trial.reason}" for trial in failed[:10]),
        hint=f"`%jobs attach {failed[0].name}` shows why the first of them failed",
    )


# -- views ----------------------------------------------------------------------------------------


class LiveSweepView:
    """Passes a sweep by MIME type to ``show``, a few times a second."""

    def __init__(
        self,
        show: Callable[[dict[str, str]], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show = show
        self._clock = clock
        self._name = "sweep"
        self._state = "Preparing"
        self._report: SweepReport | None = None
        self._summary = ""
        self._lines: deque[OutputLine] = deque(maxlen=_MAX_LINES)
        self._build = BuildTracker(clock)
        self._drawn = float("-inf")
        self._changed = True

    def phase(self, state: str, *, name: str = "") -> None:
        """Show the current step immediately."""
        self._state, self._name = state, name or self._name
        self._build.reset()
        self._draw()

    def build_event(self, event: Event) -> None:
        """Show an event of the build before the sweep."""
        self._build.handle(event)
        self._changed = True

    def add_output(self, source: str, text: str) -> None:
        """Show a line of output of a program that prepares the sweep."""
        self._lines.append(OutputLine(source, strip_control_sequences(text)))
        self._changed = True

    def update(self, report: SweepReport) -> None:
        """Handle a change of a trial."""
        self._report, self._changed = report, True
        self._lines.clear()
        if self._state != "Stopping":
            self._state = "Running"
        self.tick()

    def tick(self) -> None:
        """Redraw if something changed."""
        is_due = self._clock() - self._drawn >= _DRAW_INTERVAL
        if self._changed and is_due and not self._summary:
            self._draw()

    def finish(self, state: str, message: str) -> None:
        """Show the final state."""
        self._state, self._summary = state, message
        self._draw()

    def _draw(self) -> None:
        self._drawn, self._changed = self._clock(), False
        self._show(
            render_sweep(
                self._report,
                name=self._name,
                state=self._state,
                summary=self._summary,
                lines=tuple(self._lines),
                build=self._build.rows(),
            )
        )


class TerminalSweepView:
    """Writes a line when a trial starts and when it ends."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self._states: dict[int, str] = {}

    def phase(self, state: str, *, name: str = "") -> None:
        """Write the current step."""
        self._write_line(f"{name or 'sweep'}: {state}")

    def add_output(self, source: str, text: str) -> None:
        """Write a line of output of a program that prepares the sweep."""
        self._write_line(f"{source} │ {text}")

    def build_event(self, event: Event) -> None:
        """Write a line about an event of the build before the sweep, if it is worth one."""
        text = format_build_event(event)
        if text:
            self.add_output("build", text)

    def update(self, report: SweepReport) -> None:
        """Write the trials whose state changed."""
        for trial in report.trials:
            if self._states.get(trial.number) != trial.state:
                self._states[trial.number] = trial.state
                outcome = format_outcome(trial, report)
                self._write_line(f"{trial.name}  {format_point(trial)}  {outcome}")

    def tick(self) -> None:
        """Do nothing: lines are written immediately."""

    def finish(self, state: str, message: str) -> None:
        """Write the final message."""
        self._write_line(message)

    def _write_line(self, text: str) -> None:
        text = strip_control_sequences(text)
        print(text, file=self._out or sys.stdout, flush=True)


# -- rendering ------------------------------------------------------------------------------------


def render_sweep(
    report: SweepReport | None,
    *,
    name: str,
    state: str,
    summary: str = "",
    lines: Sequence[OutputLine] = (),
    build: Sequence[BuildRow] = (),
) -> dict[str, str]:
    """Render a sweep by MIME type, at most :data:`danlu.notebook.rendering.MAX_BYTES` bytes."""
    summary = strip_control_sequences(summary)[:_MAX_SUMMARY_LENGTH]
    output = prefix_lines(lines, len(lines))
    for max_rows in _ROW_LIMITS:
        renderer = _SweepRenderer(
            name,
            state,
            report,
            summary=summary,
            output=output,
            build=build,
            max_rows=max_rows,
        )
        data = {"text/html": renderer.render_html(), "text/plain": renderer.render_text()}
        if sum(map(json_size, data.values())) < MAX_BYTES - 256:
            break
    return data


class _SweepRenderer:
    """Renders a sweep with at most ``max_rows`` trials."""

    def __init__(
        self,
        name: str,
        state: str,
        report: SweepReport | None,
        *,
        summary: str,
        output: Sequence[str],
        build: Sequence[BuildRow],
        max_rows: int,
    ) -> None:
        self._name = name
        self._state = state
        self._report = report
        self._summary = summary
        self._output = output
        self._build = build[:max_rows]
        self._axes = _axis_names(report)
        self._trials = _visible_trials(report, max_rows)
        hidden = len(report.trials) - len(self._trials) if report is not None else 0
        self._more = f"… and {hidden} more" if hidden else ""
        self._counts = (
            f"{count_finished(report)} of {report.total} finished" if report is not None else ""
        )

    def render_text(self) -> str:
        parts = [" ".join(filter(None, [self._name, self._state, self._counts]))]
        if self._report is not None and self._trials:
            rows = [_trial_cells(trial, self._report, self._axes) for trial in self._trials]
            parts += render_text_table(self._column_titles(self._report), rows)
        parts += [self._more, *render_build_text(self._build), *self._output, self._summary]
        return "\n".join(filter(None, parts))

    def render_html(self) -> str:
        head = f"<b>{_escape(self._name)}</b> {colorize(self._state, self._state)}"
        parts = [f"<div>{head} {dim(self._counts) if self._counts else ''}</div>"]
        if self._report is not None and self._trials:
            rows = [_html_row(trial, self._report, self._axes) for trial in self._trials]
            titles = [_escape(title) for title in self._column_titles(self._report)]
            parts.append(render_html_table(titles, rows))
        if self._more:
            parts.append(f"<div>{dim(self._more)}</div>")
        parts.append(render_build_html(self._build, len(self._build)))
        if self._output:
            output = _escape("\n".join(self._output))
            parts.append(f"<pre style='margin:4px 0'>{output}</pre>")
        if self._summary:
            parts.append(f"<div>{colorize(self._summary, self._state)}</div>")
        return f"<div class='danlu-sweep'>{''.join(parts)}</div>"

    def _column_titles(self, report: SweepReport) -> list[str]:
        return _truncate_cells(("job", *self._axes, "state", report.measure.title, "duration"))


def _html_row(trial: SweepTrial, report: SweepReport, axes: list[str]) -> list[str]:
    cells = [_escape(text) for text in _trial_cells(trial, report, axes)]
    state = 1 + len(axes)
    cells[state] = colorize(cells[state], trial.state, escaped=True)
    best = report.best
    if best is not None and best.number == trial.number:
        cells = [f"<b>{cell}</b>" for cell in cells]
    return cells


def _escape(text: str) -> str:
    return html.escape(text, quote=False)


def _axis_names(report: SweepReport | None) -> list[str]:
    return axis_names(report)[:_MAX_AXES] if report is not None else []


def _trial_cells(trial: SweepTrial, report: SweepReport, axes: list[str]) -> list[str]:
    return _truncate_cells(trial_row(trial, report, axes))


def _truncate_cells(cells: Sequence[str]) -> list[str]:
    return [strip_control_sequences(cell)[:_MAX_CELL_LENGTH] for cell in cells]


def _visible_trials(report: SweepReport | None, max_rows: int) -> list[SweepTrial]:
    """Return all trials if they fit, else running trials and the best of the others."""
    if report is None:
        return []
    if len(report.trials) <= max_rows:
        return list(report.trials)
    running = [trial for trial in report.trials if trial.state == "Running"][: max_rows // 2]
    finished = [trial for trial in report.rank_trials() if trial.state != "Running"]
    return [*running, *finished[: max_rows - len(running)]]
