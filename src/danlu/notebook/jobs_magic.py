"""The ``%jobs`` magic: list, show and control jobs from a notebook."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from html import escape

import msgspec

from danlu.errors import UsageError
from danlu.jobs.backends import list_views
from danlu.jobs.types import JobBackend, JobView
from danlu.notebook import background_loop
from danlu.notebook.cells import attach_cell
from danlu.notebook.context import CellContext
from danlu.notebook.job_view import output_line
from danlu.notebook.rendering import (
    colorize,
    render_html_table,
    render_mime_bundle,
    render_text,
    render_text_table,
)
from danlu.submission.job_view_model import JOB_COLUMNS, JobSnapshot, job_row, job_snapshot
from danlu.util.suggest import did_you_mean

#: All but ``list`` take the names of jobs.
SUBCOMMANDS = ("list", "show", "logs", "attach", "stop", "rm")

#: How many jobs to list, and how many lines of each replica's log to show.
_MAX_JOBS, _TAIL_LINES = 50, 200

_USAGE = "`%jobs`, or `%jobs show|logs|attach|stop|rm NAME`; add `--on CONTEXT` for a cluster"

#: Makes ``attach`` unpickle results of any image.
TRUST_FLAG = "--trust-results"

Show = Callable[[dict[str, str]], None]


class _Arguments(msgspec.Struct, frozen=True):
    subcommand: str
    names: tuple[str, ...]
    on: str
    trusted: bool


def run_jobs_magic(line: str, context: CellContext, show: Show) -> None:
    """Run ``%jobs LINE`` and ``show`` its output by MIME type.

    Raises :class:`UsageError` for an unknown subcommand or job.
    """
    arguments = _parse_line(line)
    jobs = context.jobs(arguments.on)
    if arguments.subcommand == "list":
        notes: list[str] = []
        views = background_loop.run(lambda: list_views(jobs, notes.append))
        show(_render_list(views, notes))
        return
    for name in arguments.names:
        if arguments.subcommand == "attach":
            attach_cell(name, context, on=arguments.on, trusted=arguments.trusted)
        else:
            show(background_loop.run(partial(_ACTIONS[arguments.subcommand], name, jobs)))


def complete_arguments(line: str, context: CellContext) -> list[str]:
    """Return what the last word of a line ``%jobs …`` may be; a blank at the end begins one."""
    words = line.split()
    is_begun = not line[-1:].isspace()
    if len(words) < 2 or (len(words) == 2 and is_begun):
        return list(SUBCOMMANDS)
    return complete_job_names(context)


def complete_job_names(context: CellContext) -> list[str]:
    """Return the names of all jobs, newest first."""

    async def names() -> list[str]:
        return list(await context.jobs().names())

    return background_loop.run(names)


def _parse_line(line: str) -> _Arguments:
    try:
        words, on = _split_on_option(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"%jobs: {error}", hint=_USAGE) from None
    trusted = TRUST_FLAG in words
    words = [word for word in words if word != TRUST_FLAG]
    subcommand = words[0] if words else "list"
    subcommand = "list" if subcommand == "ls" else subcommand
    if subcommand not in SUBCOMMANDS:
        hint = did_you_mean(subcommand, SUBCOMMANDS, otherwise=_USAGE)
        raise UsageError(f"unknown subcommand: %jobs {subcommand}", hint=hint)
    names = tuple(words[1:])
    if subcommand != "list" and not names:
        raise UsageError(
            f"%jobs {subcommand} requires the name of a job", hint="`%jobs` lists all jobs"
        )
    if subcommand == "list" and names:
        raise UsageError("%jobs list takes no name", hint=_USAGE)
    return _Arguments(subcommand, names, on, trusted)


def _split_on_option(words: Sequence[str]) -> tuple[list[str], str]:
    """Return the words without ``--on CONTEXT``, and the context."""
    remaining, on = [], ""
    iterator = iter(words)
    for word in iterator:
        name, equals, value = word.partition("=")
        if name == "--on":
            on = value if equals else next(iterator, "")
        else:
            remaining.append(word)
    return remaining, on


def _render_list(views: Sequence[JobView], notes: Sequence[str]) -> dict[str, str]:
    now = datetime.now(UTC)
    rows = [job_row(view, now=now) for view in views[:_MAX_JOBS]]
    if not rows:
        text = "; ".join(("no jobs", *notes))
        return {"text/plain": text, "text/html": f"<div>{escape(text)}</div>"}
    hidden = [f"… and {len(views) - _MAX_JOBS} more"] if len(views) > _MAX_JOBS else []
    more = "; ".join((*hidden, *notes))
    cells = [
        [escape(name), colorize(state, state), *map(escape, others)]
        for name, state, *others in rows
    ]
    text = "\n".join([*render_text_table(JOB_COLUMNS, rows), more]).rstrip()
    return {
        "text/html": f"{render_html_table(JOB_COLUMNS, cells)}<div>{escape(more)}</div>",
        "text/plain": text,
    }


async def _show_job(name: str, jobs: JobBackend) -> dict[str, str]:
    return render_mime_bundle(job_snapshot(await jobs.view(name), now=datetime.now(UTC)))


async def _show_logs(name: str, jobs: JobBackend) -> dict[str, str]:
    view = await jobs.view(name)
    lines = [line async for line in jobs.logs(name, tail=_TAIL_LINES)]
    lines.sort(key=lambda line: line.time)
    # Lines of a replica are numbered from 0.
    written = {line.replica: line.number + 1 for line in lines}
    job = JobSnapshot(
        name=name,
        kind=view.kind,
        state=view.state,
        lines=tuple(output_line(line) for line in lines[-_TAIL_LINES:]),
        written=sum(written.values()),
    )
    if not job.lines:
        return {"text/plain": f"{render_text(job)}: no output yet"}
    return render_mime_bundle(job)


async def _stop_job(name: str, jobs: JobBackend) -> dict[str, str]:
    if (await jobs.view(name)).finished:
        return {"text/plain": f"{name} has already ended"}
    await jobs.stop(name)
    return {"text/plain": f"{name} stopped"}


async def _remove_job(name: str, jobs: JobBackend) -> dict[str, str]:
    await jobs.remove(name)
    return {"text/plain": f"{name} and its logs removed"}


_ACTIONS: dict[str, Callable[[str, JobBackend], Awaitable[dict[str, str]]]] = {
    "show": _show_job,
    "logs": _show_logs,
    "stop": _stop_job,
    "rm": _remove_job,
}
