"""Up to eight jobs next to each other: their curves over the same axes, and how they differ."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC, datetime

from danlu.errors import UsageError
from danlu.jobs.types import JobBackend, JobView
from danlu.submission.job_view_model import elapsed_seconds, format_metric
from danlu.submission.metric_charts import CURVE_STYLES, Curve, MetricHistory, render_curves
from danlu.ui.components import render_job_link, render_state
from danlu.ui.html import Html, element, render_table
from danlu.ui.job_catalog import describe_row
from danlu.ui.types import PageContent, PageRequest, Site
from danlu.util.human import format_duration

MAX_JOBS = len(CURVE_STYLES)
_MAX_CHARTS = 12
_CHART_WIDTH, _CHART_HEIGHT = 460, 220
#: Variables that frameworks set: ports, ranks and addresses, which always differ.
_FRAMEWORK_VARIABLES = (
    *("MASTER_", "PET_", "RANK", "WORLD_SIZE", "LOCAL_", "TF_CONFIG", "KUBEFLOW_", "DANLU_"),
    *("PADDLE_", "POD_", "JAX_", "COORDINATOR_", "DMLC_", "MX_", "OMPI_", "TRAINER_"),
)


class ComparePage:
    """Jobs next to each other; their names are in the address: ``?jobs=a,b``."""

    path = "/compare"
    menu = ""

    async def read_stamp(self, site: Site, request: PageRequest) -> Hashable:
        """Return what changes with these jobs, and each second while one runs."""
        return site.jobs.read_job_stamp(*_read_names(request))

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return the parts of the page."""
        names = _read_names(request)
        if not 2 <= len(names) <= MAX_JOBS:
            raise UsageError(
                f"choose from 2 to {MAX_JOBS} jobs to compare",
                hint="mark them in the table of jobs",
            )
        views = [await site.jobs.read_view(name) for name in names]
        parameters = [await read_parameters(site.backend, view) for view in views]
        parts = {
            "jobs": _render_jobs(views),
            "curves": _render_charts(views),
            "parameters": _render_differences(views, parameters),
        }
        return PageContent("Compare", parts, is_final=all(view.finished for view in views))


def _read_names(request: PageRequest) -> list[str]:
    return list(dict.fromkeys(filter(None, request.query.get("jobs", "").split(","))))


async def read_parameters(backend: JobBackend, view: JobView) -> Mapping[str, str]:
    """Return what a job was started with: its options, variables, image and sweep's values."""
    found: dict[str, str] = {"framework": view.framework, "replicas": str(len(view.replicas))}
    found |= {key.removeprefix("sweep."): value for key, value in view.labels.items()}
    if not view.replicas:
        return found
    try:
        command = await backend.command(view.name, view.replicas[0].id)
    except UsageError:
        return found  # it has not run yet
    found |= split_options(command.args)
    found |= {
        name: value
        for name, value in command.environment.items()
        if not name.startswith(_FRAMEWORK_VARIABLES)
    }
    return found | {"image": command.image, "directory": command.directory}


def split_options(args: Sequence[str]) -> Mapping[str, str]:
    """Return the options among arguments, and the others by position."""
    found: dict[str, str] = {}
    name = ""
    position = 0
    for word in args:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            found[name] = value if equals else ""
            name = "" if equals else name
        elif name:
            found[name], name = word, ""
        else:
            found[f"argument {position}"] = word
            position += 1
    return found


def _render_jobs(views: Sequence[JobView]) -> Html:
    now = datetime.now(UTC)
    rows = []
    for view, (color, dashes) in zip(views, CURVE_STYLES, strict=False):
        row, seconds = describe_row(view), elapsed_seconds(view, now=now)
        rows.append(
            element(
                "tr",
                element("td", _render_key(color, dashes)),
                element("th", render_job_link(view.name), scope="row"),
                element("td", render_state(view.state)),
                element("td", "" if seconds is None else format_duration(seconds)),
                element("td", row.reason, class_="reason"),
                data_key=view.name,
            )
        )
    head = (element("span", "Curve", class_="hidden"), "Name", "State", "Duration", "Why")
    return element("div", element("h1", "Compare"), render_table(head, rows, caption="Jobs"))


def _render_key(color: str, dashes: str) -> Html:
    line = element(
        "line",
        x1=0,
        y1=5,
        x2=28,
        y2=5,
        stroke=color,
        stroke_width=3,
        stroke_dasharray=dashes or None,
    )
    return element("svg", line, width=28, height=10, aria_hidden="true")


def _render_charts(views: Sequence[JobView]) -> Html:
    histories = []
    for view in views:
        history = MetricHistory()
        if view.progress is not None and view.progress.metrics:
            began = view.created or view.progress.updated or datetime.now(UTC)
            history.update(view.progress, began.timestamp())
        histories.append({series.name: series for series in history.series()})
    names = list(dict.fromkeys(name for history in histories for name in history))
    charts = []
    for name in names[:_MAX_CHARTS]:
        curves = [
            Curve(
                f"{view.name}: {format_metric(history[name].last)}",
                history[name].points,
                color,
                dashes,
            )
            for view, history, (color, dashes) in zip(views, histories, CURVE_STYLES, strict=False)
            if name in history
        ]
        svg = render_curves(curves, name, shortened=name, width=_CHART_WIDTH, height=_CHART_HEIGHT)
        charts.append(Html(svg))
    if not charts:
        return element("p", "None of these jobs has reported metrics.", class_="dim")
    return element("section", charts, class_="curves", aria_label="Metrics")


def _render_differences(views: Sequence[JobView], parameters: Sequence[Mapping[str, str]]) -> Html:
    keys = dict.fromkeys(key for found in parameters for key in found)
    rows = [
        element(
            "tr",
            element("th", key, scope="row"),
            [element("td", found.get(key, "–"), class_="reason") for found in parameters],
        )
        for key in keys
        if len({found.get(key) for found in parameters}) > 1
    ]
    if not rows:
        return element("p", "They were started with the same parameters.", class_="dim")
    head = ("Parameter", *(view.name for view in views))
    table = render_table(head, rows, caption="Parameters that differ")
    return element("section", element("h2", "Parameters that differ"), table)
