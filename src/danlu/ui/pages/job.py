"""A job: its state, replicas over time, curves, logs, environment and commands."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from danlu.errors import UsageError
from danlu.jobs.backends import list_run_names
from danlu.jobs.first_failure import explain_first_failure
from danlu.jobs.local.job_directory import EventRecord
from danlu.jobs.local.log_index import AttemptSpan
from danlu.jobs.report import format_on_option, format_shell_line
from danlu.jobs.types import JobView, ReplicaView, Submission
from danlu.submission.job_view_model import (
    REPLICA_COLUMNS,
    elapsed_seconds,
    format_metric,
    replica_row,
    summarize_hidden,
    visible_replicas,
)
from danlu.submission.metric_charts import MetricHistory, render_svg
from danlu.sweeps.labels import read_sweep_name
from danlu.training.types import ReplicaId
from danlu.ui.components import (
    job_path,
    render_command,
    render_job_actions,
    render_progress,
    render_state,
    sweep_path,
)
from danlu.ui.html import Html, element, join_html, render_table
from danlu.ui.job_catalog import describe_row
from danlu.ui.timeline import render_timeline
from danlu.ui.types import PageContent, PageRequest, Site
from danlu.util.human import format_duration, pluralize

_MAX_CHARTS = 12
_MAX_EVENTS = 200
_MAX_REPLICAS = 64


@runtime_checkable
class EventRecords(Protocol):
    """A backend that keeps the events of jobs."""

    async def events(self, name: str) -> tuple[EventRecord, ...]:
        """Return the events of a job, in order."""


@runtime_checkable
class JobSubmissions(Protocol):
    """A backend that keeps what was submitted."""

    async def submission(self, name: str) -> Submission:
        """Return what was submitted."""


class JobPage:
    """One job."""

    path = "/jobs/{name}"
    menu = ""

    async def read_stamp(self, site: Site, request: PageRequest) -> Hashable:
        """Return what changes with the job, and each second while it runs."""
        return site.jobs.read_job_stamp(request.variables["name"])

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return the parts of the page."""
        view = await site.jobs.read_view(request.variables["name"])
        view = await explain_first_failure(site.backend, view, last_line=True)
        parts = {
            "head": render_job_head(view, actions=True),
            "runs": await _render_runs(site, view),
            **await render_job_parts(site, view),
            "logs": _render_log_pane(view),
            "events": await _render_events(site, view),
            "commands": await _render_commands(site, view),
        }
        return PageContent(view.name, parts, is_final=view.finished)


async def render_job_parts(site: Site, view: JobView) -> Mapping[str, Html]:
    """Return the parts of the page that need no script."""
    shown = visible_replicas(view.replicas, _MAX_REPLICAS)
    restarted = [str(replica.id) for replica in shown if replica.attempt]
    spans: Mapping[ReplicaId, Sequence[AttemptSpan]] = {}
    if restarted:
        with await site.logs.open_index(view.name, restarted) as index:
            spans = {replica.id: index.list_attempts(replica.id) for replica in shown}
    return {
        "replicas": _render_replicas(view, shown),
        "timeline": render_timeline(view, shown, spans),
        "curves": _render_charts(view),
    }


def render_job_head(view: JobView, *, actions: bool) -> Html:
    """Return the name, state, progress and reason of a job, with buttons if it has ``actions``."""
    row = describe_row(view)
    now = datetime.now(UTC)
    seconds = elapsed_seconds(view, now=now)
    progress = view.progress
    sweep = read_sweep_name(view.labels) if actions else ""
    facts = [
        element("span", f"{view.kind} ({view.framework})"),
        element("a", f"sweep {sweep}", href=sweep_path(sweep)) if sweep else None,
        element("span", format_duration(seconds)) if seconds is not None else None,
        render_progress(progress, is_finished=view.finished) if progress else None,
        *(
            element("span", element("span", name, class_="dim"), f" {format_metric(value)}")
            for name, value in list(progress.metrics.items() if progress else ())[:_MAX_CHARTS]
        ),
    ]
    return join_html(
        (
            element("h1", view.name, " ", render_state(view.state)),
            element("p", facts, class_="facts"),
            element("p", row.reason, class_="reason failure") if row.reason else None,
            [element("p", "⚠ ", text, class_="attention") for text in view.warnings[:10]],
            element("p", render_job_actions(row), class_="actions") if actions else None,
        )
    )


async def _render_runs(site: Site, view: JobView) -> Html:
    """Return links to the earlier runs of the name."""
    names = await list_run_names(site.backend, view.name)
    links = [element("a", name, href=job_path(name)) for name in names[:20]]
    return element("p", "Earlier runs: ", links, class_="dim facts") if links else Html()


def _render_replicas(view: JobView, shown: Sequence[ReplicaView]) -> Html:
    rows = [
        element(
            "tr",
            [
                element("td", render_state(replica.state, cell) if index == 1 else cell)
                for index, cell in enumerate(replica_row(replica))
            ],
            data_key=str(replica.id),
        )
        for replica in shown
    ]
    if not rows:
        return Html()
    table = render_table(REPLICA_COLUMNS, rows, caption="Replicas")
    hidden = summarize_hidden(view.replicas, _MAX_REPLICAS)
    return join_html((table, element("p", hidden, class_="dim") if hidden else None))


def _render_charts(view: JobView) -> Html:
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


async def _render_events(site: Site, view: JobView) -> Html:
    """Return the conditions of the job and, on this machine, its events, by time."""
    found: list[tuple[datetime | None, str, str, str]] = [
        (condition.last_transition_time, condition.type, condition.reason, condition.message)
        for condition in view.status.conditions
    ]
    if isinstance(site.backend, EventRecords):
        found += [
            (event.time, event.type, event.reason, event.message)
            for event in await site.backend.events(view.name)
        ]
    rows = [
        element(
            "tr",
            element("td", f"{at:%H:%M:%S}" if at else ""),
            element("td", kind),
            element("td", reason),
            element("td", message, class_="reason"),
        )
        for at, kind, reason, message in sorted(
            found, key=lambda event: event[0] or datetime.min.replace(tzinfo=UTC)
        )
    ]
    if not rows:
        return Html()
    head = ("Time", "Type", "Reason", "Message")
    table = render_table(head, rows[-_MAX_EVENTS:], caption="Events")
    return element("details", element("summary", pluralize(len(rows), "event")), table)


async def _render_commands(site: Site, view: JobView) -> Html:
    """Return the commands that show this job elsewhere, and that run its first replica again."""
    on = format_on_option(view.where)
    lines = [f"danlu jobs show {view.name}{on}", f"danlu jobs logs {view.name}{on}"]
    facts = [("directory", view.directory)] if view.directory else []
    first = view.status.first_failure
    chosen = first.replica if first else view.replicas[0].id if view.replicas else None
    if chosen is not None:
        with suppress(UsageError):  # it has not run yet
            command = await site.backend.command(view.name, chosen)
            lines.append(format_shell_line(command, project=view.directory))
            facts.append(("image", command.image))
    if isinstance(site.backend, JobSubmissions):
        submission = await site.backend.submission(view.name)
        facts += [("image", f"{image.name} {image.digest}") for image in submission.images.values()]
        facts.append(("python", submission.python))
    environment = element(
        "dl", [(element("dt", key), element("dd", value)) for key, value in facts if value]
    )
    commands = [render_command(line) for line in lines]
    title = f"Environment and commands (the last one runs only {chosen})"
    return element("details", element("summary", title), environment, commands)
