"""Sweeps: the list of them, and the points of one, the best first."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from danlu.errors import UsageError
from danlu.jobs.report import format_shell_line
from danlu.submission.job_view_model import format_metric
from danlu.sweeps.labels import (
    read_leader,
    read_objective,
    read_point,
    read_sweep_name,
    read_total,
)
from danlu.sweeps.report import SweepObjective, SweepReport, SweepTrial, TrialState
from danlu.sweeps.runner import read_last_match
from danlu.sweeps.view_model import (
    axis_names,
    count_finished,
    describe_best,
    format_point,
    trial_row,
)
from danlu.ui.components import (
    job_path,
    read_start,
    render_age,
    render_command,
    render_job_link,
    render_paging,
    render_progress,
    render_reason,
    render_state,
    sweep_path,
)
from danlu.ui.html import Html, element, join_html, render_row, render_table
from danlu.ui.job_catalog import JobFilter, JobRow
from danlu.ui.parallel_coordinates import render_parallel_coordinates
from danlu.ui.types import PageContent, PageRequest, Site
from danlu.util.danlu_program import LOCAL_CONTEXT
from danlu.util.human import pluralize

_MAX_JOBS, _MAX_POINTS, _ROWS = 2_000, 10_000, 100
_STATES: Mapping[str, TrialState] = {"Succeeded": "Succeeded", "Failed": "Failed", "Lost": "Failed"}


class SweepsPage:
    """The sweeps among the newest jobs."""

    path = "/sweeps"
    menu = "Sweeps"

    async def read_stamp(self, site: Site, request: PageRequest) -> Hashable:
        """Return what changes with the jobs."""
        return site.jobs.read_live_stamp()

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return the table of sweeps, newest first."""
        rows, more, _ = await site.jobs.list_rows(JobFilter(), start=0, count=_MAX_JOBS)
        sweeps: dict[str, list[JobRow]] = {}
        for row in rows:
            if name := read_sweep_name(row.labels):
                sweeps.setdefault(name, []).append(row)
        now = datetime.now(UTC)
        table = render_table(
            ("Name", "Points", "Compares", "Best", "Parameters", "Age"),
            [_render_sweep_row(name, rows, now) for name, rows in sweeps.items()],
            caption="Sweeps",
            empty="No sweeps yet; danlu train --sweep lr=0.1,0.01 starts one.",
        )
        note = element("p", f"of the newest {_MAX_JOBS} jobs", class_="dim") if more else Html()
        parts = {"head": element("h1", "Sweeps"), "table": table, "note": note}
        return PageContent("Sweeps", parts)


class SweepPage:
    """One sweep; the metric and the goal may be others than its own."""

    path = "/sweeps/{name}"
    menu = ""

    def __init__(self) -> None:
        #: The values that a pattern found in the logs of finished jobs.
        self._values: dict[Hashable, float | None] = {}

    async def read_stamp(self, site: Site, request: PageRequest) -> Hashable:
        """Return what changes with the jobs."""
        return site.jobs.read_live_stamp()

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return the best point, the chart and the table."""
        name, query = request.variables["name"], request.query
        found, _, _ = await site.jobs.list_rows(JobFilter(f"{name}-"), start=0, count=_MAX_POINTS)
        rows = {row.name: row for row in found if read_sweep_name(row.labels) == name}
        if not rows:
            raise UsageError(f"sweep {name} not found", hint="the page Sweeps lists them")
        objective = _read_objective(rows.values(), query.get("metric", ""), query.get("goal", ""))
        report = _collect_report(
            rows.values(), objective, await self._read_values(site, rows.values(), objective)
        )
        start = read_start(query)
        shown = report.rank_trials()[start : start + _ROWS]
        axes = axis_names(report)
        chart = render_parallel_coordinates(report, axes, [trial.name for trial in shown])
        parts = {
            "head": _render_head(name, report, _read_objective(rows.values()), query),
            "best": await _render_best(site, report),
            "chart": element(
                "div", chart, class_="wide", tabindex="0", role="region", aria_label="Chart"
            ),
            "legend": _render_legend(report),
            "table": _render_points(report, axes, shown, rows),
            "paging": render_paging(
                sweep_path(name),
                query,
                (start, _ROWS, len(report.trials)),
                "point",
                ("Better", "Worse"),
            ),
        }
        return PageContent(f"{name} (sweep)", parts)

    async def _read_values(
        self, site: Site, rows: Iterable[JobRow], objective: SweepObjective
    ) -> Mapping[str, float | None]:
        """Return the values in logs, by job; of this machine only, as a pattern may take long."""
        if not objective.pattern or site.where != LOCAL_CONTEXT:
            return {}
        found = {}
        for row in rows:
            key = row.name, row.created, objective.pattern
            if row.state == "Succeeded" and key not in self._values:
                view = await site.backend.view(row.name)
                for replica in view.replicas:
                    if str(replica.id) == read_leader(row.labels):
                        self._values[key] = await read_last_match(
                            site.backend, row.name, replica.id, objective.pattern
                        )
            found[row.name] = self._values.get(key)
        return found


def _read_objective(rows: Iterable[JobRow], metric: str = "", goal: str = "") -> SweepObjective:
    return read_objective(next(iter(rows)).labels, metric=metric, goal=goal)


def _collect_report(
    rows: Iterable[JobRow], objective: SweepObjective, values: Mapping[str, float | None]
) -> SweepReport:
    """Return the report of the jobs of a sweep, by the numbers in their names."""
    ordered = sorted(rows, key=lambda row: (len(row.name), row.name))
    trials = []
    for number, row in enumerate(ordered, 1):
        state: TrialState = _STATES.get(row.state, "Stopped") if row.is_finished else "Running"
        metrics = row.progress.metrics if row.progress is not None else {}
        value = values.get(row.name) if objective.pattern else metrics.get(objective.metric)
        trial = SweepTrial(
            number,
            read_point(row.labels),
            row.name,
            state,
            value if state == "Succeeded" else None,
            (row.ended - row.created).total_seconds() if row.ended and row.created else None,
            row.reason if state == "Failed" else "",
            row.progress,
        )
        trials.append(trial)
    total = max(read_total(ordered[0].labels), len(trials))
    return SweepReport(objective, tuple(trials), total)


def _render_sweep_row(name: str, rows: Sequence[JobRow], now: datetime) -> Html:
    report = _collect_report(rows, _read_objective(rows), {})
    best = report.best
    value = format_metric(best.value) if best is not None and best.value is not None else "–"
    failed = sum(trial.state == "Failed" for trial in report.trials)
    counts = f"{count_finished(report)} of {report.total} finished"
    return render_row(
        element("a", name, href=sweep_path(name)),
        (counts, element("span", f", {failed} failed", class_="failure") if failed else ""),
        f"{report.measure.goal} {report.measure.title}",
        value,
        render_reason(format_point(best) if best is not None else "–"),
        render_age(max((row.created for row in rows if row.created), default=None), now),
        data_key=name,
    )


# -- one sweep ------------------------------------------------------------------------------------


def _render_head(
    name: str, report: SweepReport, own: SweepObjective, query: Mapping[str, str]
) -> Html:
    chosen = query.get("metric", "")
    names = sorted({*report.metric_names(), chosen} - {"", own.metric if not own.pattern else ""})
    metrics = [element("option", own.title, value="")]
    metrics += [element("option", item, selected=item == chosen) for item in names]
    goals = [
        element("option", goal, selected=goal == report.measure.goal) for goal in ("min", "max")
    ]
    failed = sum(trial.state == "Failed" for trial in report.trials)
    facts = [
        element("span", f"{count_finished(report)} of {pluralize(report.total, 'point')} finished"),
        element("span", f"{failed} failed", class_="failure") if failed else None,
    ]
    form = element(
        "form",
        element("h1", name),
        element("label", "Metric ", element("select", metrics, name="metric")),
        element("label", "Best is ", element("select", goals, name="goal")),
        class_="filters",
        data_filter=True,
    )
    return join_html((form, element("p", facts, class_="facts")))


async def _render_best(site: Site, report: SweepReport) -> Html:
    """Return a sentence about the best point, and the command that trains it again."""
    best = report.best
    if report.measure.pattern and site.where != LOCAL_CONTEXT:
        found = f"Its values are in the logs ({report.measure.pattern}): danlu train printed them."
        return element("p", found, " Choose a reported metric to compare the points here.")
    sentence = describe_best(report)
    if best is None:
        return element("p", sentence[:1].upper() + sentence[1:], class_="dim")
    command = Html()
    with suppress(UsageError):  # removed meanwhile
        view = await site.backend.view(best.name)
        replica = view.replicas[0].id
        line = format_shell_line(
            await site.backend.command(best.name, replica), project=view.directory
        )
        only = f" (this is its {replica})" if len(view.replicas) > 1 else ""
        command = element(
            "details", element("summary", f"Train it again{only}"), render_command(line)
        )
    link = element("a", "open the job", href=job_path(best.name))
    return join_html((element("p", f"★ {sentence} ", link, class_="best-point"), command))


def _render_legend(report: SweepReport) -> Html:
    entries = (
        *(("best", "best"), ("top", "best tenth"), ("good", "best third")),
        *(("rest", "others"), ("unknown", "without a value")),
    )
    samples = [
        element(
            "span",
            element(
                "svg",
                element("path", class_=f"trial {kind}", d="M0 6H28"),
                class_="sample",
                viewBox="0 0 28 12",
                aria_hidden="true",
            ),
            text,
        )
        for kind, text in entries
    ]
    return element("p", samples, class_="facts dim") if report.trials else Html()


def _render_points(
    report: SweepReport, axes: list[str], shown: Sequence[SweepTrial], rows: Mapping[str, JobRow]
) -> Html:
    head = ("Job", *axes, "State", report.measure.title, "Duration")
    best = report.best
    body = [
        _render_point(
            trial, trial_row(trial, report, axes), rows[trial.name], is_best=trial is best
        )
        for trial in shown
    ]
    return render_table(head, body, caption="Points, the best first")


def _render_point(trial: SweepTrial, cells: Sequence[str], row: JobRow, *, is_best: bool) -> Html:
    name, *values, _, value, duration = cells
    star = element("span", "★", role="img", aria_label="best", title="best") if is_best else None
    state = [render_state(row.state)]
    if not row.is_finished and row.progress is not None:
        state.append(element("span", " ", render_progress(row.progress, is_finished=False)))
    if trial.reason:
        state.append(element("div", trial.reason, class_="reason"))
    return render_row(
        (render_job_link(name), " ", star),
        *values,
        state,
        value,
        duration,
        class_="chosen" if is_best else None,
        data_key=name,
    )
