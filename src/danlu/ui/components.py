"""Markup that several pages use."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from urllib.parse import quote, urlencode

from danlu.submission.job_view_model import format_metric, state_style, time_left
from danlu.training.progress import TrainingProgress
from danlu.ui.html import Child, Html, clean_text, element, join_html
from danlu.ui.job_catalog import JobRow
from danlu.util.danlu_program import LOCAL_CONTEXT
from danlu.util.human import format_duration, pluralize

_UNKNOWN = "–"


def render_state(state: str, text: str = "") -> Html:
    """Return a state, or a text about it, in its colour, which is never the only difference."""
    return element("span", text or state, class_=f"state {state_style(state)}")


def render_job_link(name: str) -> Html:
    """Return a link to the page of a job."""
    return element("a", name, href=job_path(name))


def job_path(name: str) -> str:
    """Return the path of the page of a job."""
    return f"/jobs/{quote(name, safe='@')}"


def make_url(path: str, query: Mapping[str, str]) -> str:
    """Return a path with the parameters that are not empty."""
    text = urlencode({key: value for key, value in query.items() if value})
    return f"{path}?{text}" if text else path


def sweep_path(name: str) -> str:
    """Return the path of the page of a sweep."""
    return f"/sweeps/{quote(name, safe='')}"


def image_path(image: str) -> str:
    """Return the path of the page of an image."""
    return f"/images/{quote(image, safe=':')}"


def read_start(query: Mapping[str, str]) -> int:
    """Return the first row that the address asks for."""
    text = query.get("start", "")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def render_facts(facts: Mapping[str, Child]) -> Html:
    """Return a list of names and values; those that are empty are left out."""
    rows = [(element("dt", name), element("dd", value)) for name, value in facts.items() if value]
    return element("dl", rows)


def render_reason(text: str) -> Html:
    """Return a cell with a long text, in small letters."""
    return element("td", text, class_="reason")


def render_paging(
    path: str,
    query: Mapping[str, str],
    counts: tuple[int, int, int],
    noun: str,
    titles: tuple[str, str],
) -> Html:
    """Return links to the rows before and after those shown: their start, number and the total."""
    start, number, total = counts
    links = []
    if start:
        before = str(start - number) if start > number else ""
        links.append(element("a", titles[0], href=make_url(path, {**query, "start": before})))
    if start + number < total:
        after = {**query, "start": str(start + number)}
        links.append(element("a", titles[1], href=make_url(path, after)))
    return element("p", pluralize(total, noun), links, class_="dim paging")


def render_action(
    action: str,
    name: str,
    title: str,
    *,
    confirm: str = "",
    leave: str = "",
    kind: str = "jobs",
) -> Html:
    """Return a button that runs an action; ``leave`` is the path to go to after it succeeded."""
    return element(
        "button",
        title,
        type="button",
        data_action=f"/-/{kind}/{quote(name, safe='@')}/{action}",
        data_confirm=confirm or None,
        data_leave=leave or None,
    )


def render_progress(progress: TrainingProgress | None, *, is_finished: bool) -> Html:
    """Return a bar with its percentage, and the time left."""
    if progress is None or progress.percentage is None:
        return element("span", _UNKNOWN, class_="dim")
    left = "" if is_finished else time_left(progress)
    value = progress.percentage
    bar = element("progress", f"{value} %", value=value, max=100, aria_label=f"{value} %")
    shown = element("span", bar, f" {value} % ", class_="progress")
    return element("span", shown, element("span", left, class_="dim"))


def render_metric(progress: TrainingProgress | None) -> Html:
    """Return the first metric's last value."""
    for name, value in (progress.metrics if progress is not None else {}).items():
        return element("span", element("span", name, class_="dim"), f" {format_metric(value)}")
    return element("span", _UNKNOWN, class_="dim")


def render_age(time: datetime | None, now: datetime) -> Html:
    """Return how long ago a time was."""
    if time is None:
        return element("span", _UNKNOWN, class_="dim")
    text = format_duration(max(0.0, (now - time).total_seconds())).split(" ")
    stamp = time.isoformat(timespec="seconds")
    return element("time", " ".join(text[:2]), datetime=stamp, title=stamp)


def render_job_actions(row: JobRow) -> Html:
    """Return the buttons for what can be done to a job now."""
    name = row.name
    if row.is_finished:
        remove = f"Remove {name} and its logs?"
        again = (
            render_action("rerun", name, "Run again", leave=job_path(name))
            if row.where == LOCAL_CONTEXT
            else ""
        )
        return join_html(
            (again, render_action("remove", name, "Remove", confirm=remove, leave="/"))
        )
    resumes = row.state in ("Suspended", "Suspending")
    action, title = ("resume", "Resume") if resumes else ("suspend", "Suspend")
    return join_html(
        (
            render_action(action, name, title),
            render_action("stop", name, "Stop", confirm=f"Stop {name}?"),
        )
    )


def render_command(line: str) -> Html:
    """Return a command with a button that copies it; not if it is too long to be whole."""
    button = element("button", "Copy", type="button", data_copy=line)
    is_whole = clean_text(line) == line
    return element("div", element("pre", line), button if is_whole else None, class_="copied")
