"""The table of jobs."""

from __future__ import annotations

import time
from collections.abc import Hashable
from datetime import UTC, datetime

from danlu.ui.components import (
    make_url,
    read_start,
    render_age,
    render_job_actions,
    render_job_link,
    render_metric,
    render_progress,
    render_state,
)
from danlu.ui.html import Html, element, join_html, render_table
from danlu.ui.job_catalog import JobFilter, JobRow
from danlu.ui.types import PageContent, PageRequest, Site
from danlu.util.human import pluralize

_ROWS = 100
#: Seconds after which ages are shown anew, while a job runs and otherwise.
_AGE_SECONDS, _IDLE_SECONDS = 5, 60
_STATES = (
    *("Pending", "Waiting", "Running", "Restarting", "Finishing", "Stopping"),
    *("Suspended", "Succeeded", "Failed", "Lost"),
)
_HEAD = (
    element("span", "Compare", class_="hidden"),
    *("Name", "State", "Framework", "Replicas", "Progress", "Metric", "Age", "Why"),
    element("span", "Actions", class_="hidden"),
)


class JobsPage:
    """All jobs, newest first, with filters in the address."""

    path = "/"
    menu = "Jobs"

    async def read_stamp(self, site: Site, request: PageRequest) -> Hashable:
        """Return what changes with the list, a listed job that is not finished, or the ages."""
        seconds = _AGE_SECONDS if site.jobs.has_live_rows else _IDLE_SECONDS
        return site.jobs.read_live_stamp(), time.monotonic() // seconds

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return the filters and the table."""
        query = request.query
        wanted = JobFilter(query.get("q", ""), query.get("state", ""), query.get("framework", ""))
        start = read_start(query)
        rows, more, total = await site.jobs.list_rows(wanted, start=start, count=_ROWS)
        now = datetime.now(UTC)
        table = render_table(
            _HEAD, [_render_row(row, now) for row in rows], caption="Jobs", id="jobs"
        )
        parts = {
            "filters": _render_filters(wanted, rows),
            "notes": join_html(element("p", "⚠ ", note) for note in site.jobs.notes),
            "table": table if rows else _render_empty(total),
            "paging": _render_paging(query, start, more=more, total=total),
        }
        return PageContent("Jobs", parts)


def _render_row(row: JobRow, now: datetime) -> Html:
    return element(
        "tr",
        element("td", _render_choice(row.name)),
        element("th", render_job_link(row.name), scope="row"),
        element("td", render_state(row.state)),
        element("td", row.framework),
        element("td", row.replicas, class_="number"),
        element("td", render_progress(row.progress, is_finished=row.is_finished)),
        element("td", render_metric(row.progress)),
        element("td", render_age(row.created, now)),
        element("td", row.reason, class_="reason", title=row.reason or None),
        element("td", render_job_actions(row), class_="actions"),
        data_key=row.name,
    )


def _render_choice(name: str) -> Html:
    label = f"Compare {name}"
    return element("input", type="checkbox", data_compare=name, aria_label=label)


def _render_filters(wanted: JobFilter, rows: list[JobRow]) -> Html:
    frameworks = sorted({row.framework for row in rows} | {wanted.framework} - {""})
    return element(
        "form",
        element("h1", "Jobs"),
        element(
            "label",
            "Name ",
            element("input", type="search", name="q", value=wanted.text, accesskey="f"),
        ),
        element("label", "State ", _render_select("state", _STATES, wanted.state)),
        element("label", "Framework ", _render_select("framework", frameworks, wanted.framework)),
        element("a", "Compare", href="/compare", data_comparison=True, hidden=True),
        role="search",
        class_="filters",
        data_filter=True,
    )


def _render_select(name: str, values: tuple[str, ...] | list[str], chosen: str) -> Html:
    options = [element("option", "all", value="")]
    options += [element("option", value, selected=value == chosen) for value in values]
    return element("select", options, name=name)


def _render_empty(total: int) -> Html:
    text = "No job matches these filters." if total else "No jobs yet; danlu train starts one."
    return element("p", text, class_="dim")


def _render_paging(query: object, start: int, *, more: bool, total: int) -> Html:
    assert isinstance(query, dict)
    links = []
    if start:
        newer = str(max(0, start - _ROWS)) if start > _ROWS else ""
        links.append(element("a", "Newer", href=make_url("/", {**query, "start": newer})))
    if more:
        older = make_url("/", {**query, "start": str(start + _ROWS)})
        links.append(element("a", "Older", href=older))
    return element("p", pluralize(total, "job"), " ", links, class_="dim paging")
