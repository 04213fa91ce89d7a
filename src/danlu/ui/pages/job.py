"""A job: its state, replicas over time, curves, logs, environment and commands."""

from __future__ import annotations

import time
from collections.abc import Hashable
from datetime import UTC, datetime

from danlu.jobs.backends import list_run_names
from danlu.jobs.first_failure import explain_first_failure
from danlu.jobs.types import JobView
from danlu.submission.job_view_model import (
    REPLICA_COLUMNS,
    elapsed_seconds,
    format_metrics,
    replica_row,
)
from danlu.submission.metric_charts import MetricHistory, render_svg
from danlu.ui.components import (
    job_path,
    render_job_actions,
    render_progress,
    render_state,
)
from danlu.ui.html import Html, element, join_html, render_table
from danlu.ui.job_catalog import describe_row
from danlu.ui.types import PageContent, PageRequest, Site
from danlu.util.human import format_duration

_MAX_CHARTS = 12
_MAX_REPLICAS = 64


class JobPage:
    """One job."""

    path = "/jobs/{name}"
    menu = ""

    async def read_stamp(self, site: Site, request: PageRequest) -> Hashable:
        """Return what changes with the job, and each second while it runs."""
        return site.jobs.read_stamp(request.variables["name"]), time.monotonic() // 1

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return the parts of the page."""
        name = request.variables["name"]
        view = await site.backend.view(name)
        view = await explain_first_failure(site.backend, view, last_line=True)
        parts = {
            "head": _render_head(view),
            "runs": await _render_runs(site, view),
            "replicas": _render_replicas(view),
            "curves": render_job_charts(view),
            "logs": _render_log_pane(view),
            "conditions": _render_conditions(view),
        }
        return PageContent(view.name, parts)


def _render_head(view: JobView) -> Html:
    row = describe_row(view)
    now = datetime.now(UTC)
    seconds = elapsed_seconds(view, now=now)
    progress = view.progress
    facts = [
        element("span", f"{view.kind} ({view.framework})"),
        element("span", format_duration(seconds)) if seconds is not None else None,
        render_progress(progress, is_finished=view.finished) if progress else None,
        element("span", format_metrics(progress)) if progress and progress.metrics else None,
    ]
    return join_html(
        (
            element("h1", view.name, " ", render_state(view.state)),
            element("p", facts, class_="facts"),
            element("p", row.reason, class_="reason failure") if row.reason else None,
            [element("p", "⚠ ", text, class_="attention") for text in view.warnings[:10]],
            element("p", render_job_actions(row), class_="actions"),
        )
    )


async def _render_runs(site: Site, view: JobView) -> Html:
    """Return links to the earlier runs of the name."""
    names = await list_run_names(site.backend, view.name)
    links = [element("a", name, href=job_path(name)) for name in names[:20]]
    return element("p", "Earlier runs: ", links, class_="dim facts") if links else Html()


def _render_replicas(view: JobView) -> Html:
    rows = [
        element(
            "tr",
            [
                element("td", render_state(cell) if index == 1 else cell)
                for index, cell in enumerate(replica_row(replica))
            ],
            data_key=str(replica.id),
        )
        for replica in view.replicas[:_MAX_REPLICAS]
    ]
    return render_table(REPLICA_COLUMNS, rows, caption="Replicas") if rows else Html()


def render_job_charts(view: JobView) -> Html:
    """Return the curves of what a job has reported, as the notebook draws them."""
    progress = view.progress
    if progress is None or not progress.metrics:
        return Html()
    history = MetricHistory()
    began = view.created or progress.updated or datetime.now(UTC)
    history.update(progress, began.timestamp())
    charts = [Html(render_svg(series)) for series in history.series()[:_MAX_CHARTS]]
    return element("section", charts, class_="curves", aria_label="Metrics")


def _render_log_pane(view: JobView) -> Html:
    """Return the pane that the script fills; it does not change with the job's state."""
    names = [str(replica.id) for replica in view.replicas]
    options = [element("option", "all replicas", value="")]
    options += [element("option", name) for name in names]
    bar = element(
        "div",
        element("h2", "Logs"),
        element("label", "Replica ", element("select", options, data_replica=True)),
        element(
            "label", element("input", type="checkbox", checked=True, data_follow=True), " Follow"
        ),
        element(
            "input", type="search", placeholder="Search", aria_label="Search", data_search=True
        ),
        element("button", "First failure", type="button", data_failure=True),
        element("span", data_count=True, class_="dim"),
        class_="filters",
    )
    rows = element("div", element("div", class_="rows"), class_="sizer")
    pane = element(
        "div", rows, class_="log", tabindex="0", role="log", aria_label="Log lines", aria_live="off"
    )
    return element("section", bar, pane, data_log=view.name)


def _render_conditions(view: JobView) -> Html:
    rows = [
        element(
            "tr",
            element("td", f"{transition:%H:%M:%S}" if transition else ""),
            element("td", f"{condition.type}={condition.status}"),
            element("td", condition.reason),
            element("td", condition.message, class_="reason"),
        )
        for condition in view.status.conditions
        for transition in (condition.last_transition_time,)
    ]
    head = ("Time", "Condition", "Reason", "Message")
    return render_table(head, rows, caption="Conditions") if rows else Html()
