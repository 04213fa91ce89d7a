"""``%jobs``: the jobs of this machine from a notebook."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from html import escape
from typing import TYPE_CHECKING

from danlu.commands.jobreport import ended_at
from danlu.errors import UsageError
from danlu.notebook import background, cells
from danlu.notebook.board import Board
from danlu.notebook.plain import table, text
from danlu.notebook.render import bundle, coloured, rows
from danlu.util.human import format_duration

if TYPE_CHECKING:
    from danlu.jobs.types import Jobs, JobView
    from danlu.notebook.desk import Desk

__all__ = ["WORDS", "known", "run"]

#: What may follow ``%jobs``; all but ``list`` take a job's name.
WORDS = ("list", "show", "logs", "attach", "stop", "rm")

_HEAD = ("name", "kind", "state", "replicas", "time")

#: So many jobs are listed, and so many lines of each replica's log are shown.
_MOST, _TAIL = 50, 200

_USAGE = "`%jobs`, or `%jobs show|logs|attach|stop|rm NAME`; `--on kubernetes` for a cluster's"

Show = Callable[[dict[str, str]], None]


def run(line: str, desk: Desk, show: Show) -> None:
    """Do what ``line`` says, and ``show`` by MIME type what it gives.

    Raises :class:`UsageError` for a word or a job that is not known.
    """
    word, names, on = _read(line)
    jobs = desk.jobs(on)
    if word == "list":
        show(_listed(background.run(partial(_views, jobs))))
        return
    for name in names:
        if word == "attach":
            cells.attach(name, desk, on=on)
        else:
            _ACTS[word](name, jobs, show)


def _read(line: str) -> tuple[str, Sequence[str], str]:
    """The word, the names after it, and the place."""
    try:
        words, on = _place(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"%jobs: {error}", hint=_USAGE) from None
    word = {"ls": "list"}.get(words[0], words[0]) if words else "list"
    if word not in WORDS:
        near = get_close_matches(word, WORDS, 1)
        raise UsageError(
            f"%jobs has no {word}", hint=f"did you mean {near[0]}?" if near else _USAGE
        )
    if word != "list" and not words[1:]:
        raise UsageError(f"which job? %jobs {word} takes a name", hint="`%jobs` lists them")
    if word == "list" and words[1:]:
        raise UsageError("%jobs list takes no name", hint=_USAGE)
    return word, words[1:], on


def _place(words: list[str]) -> tuple[list[str], str]:
    """The words without ``--on PLACE``, and the place."""
    rest, on = [], ""
    waiting = iter(words)
    for word in waiting:
        name, equals, value = word.partition("=")
        if name == "--on":
            on = value if equals else next(waiting, "")
        else:
            rest.append(word)
    return rest, on


async def _views(jobs: Jobs) -> list[JobView]:
    from danlu.commands.jobs import views

    return await views(jobs)


def known(desk: Desk) -> list[str]:
    """The names of all jobs, the newest first."""

    async def names() -> list[str]:
        return list(await desk.jobs().names())

    return background.run(names)


def _listed(views: Sequence[JobView]) -> dict[str, str]:
    found = [_fields(one) for one in views[:_MOST]]
    more = f"… and {len(views) - _MOST} more" if len(views) > _MOST else ""
    if not found:
        return {"text/plain": "there are no jobs", "text/html": "<div>there are no jobs</div>"}
    body = [
        [escape(row[0]), escape(row[1]), coloured(row[2], row[2]), *map(escape, row[3:])]
        for row in found
    ]
    html = rows(_HEAD, body) + f"<div>{more}</div>"
    return {"text/html": html, "text/plain": "\n".join([*table(_HEAD, found), more]).rstrip()}


def _fields(view: JobView) -> tuple[str, ...]:
    running = sum(one.state == "Running" for one in view.replicas)
    seconds = _seconds(view)
    return (
        view.name,
        view.kind,
        view.state,
        f"{running}/{len(view.replicas)}" if not view.finished else str(len(view.replicas)),
        "-" if seconds is None else format_duration(seconds),
    )


def _seconds(view: JobView) -> float | None:
    began = view.created or view.status.start_time
    if began is None:
        return None
    return ((ended_at(view) or datetime.now(UTC)) - began).total_seconds()


def _show(name: str, jobs: Jobs, show: Show) -> None:
    async def act() -> JobView:
        return await jobs.view(name)

    view = background.run(act)
    board = Board(
        name=view.name,
        kind=view.kind,
        state=view.state,
        seconds=_seconds(view),
        replicas=view.replicas,
        progress=view.progress,
        notes=view.warnings,
    )
    show(bundle(board))


def _logs(name: str, jobs: Jobs, show: Show) -> None:
    from danlu.notebook.live import read

    async def act() -> Board:
        view = await jobs.view(name)
        lines = [line async for line in jobs.logs(name, tail=_TAIL)]
        lines.sort(key=lambda line: line.time)
        last = {line.replica: line.number + 1 for line in lines}
        return Board(
            name=name,
            kind=view.kind,
            state=view.state,
            lines=tuple(read(line) for line in lines[-_TAIL:]),
            written=sum(last.values()),
        )

    board = background.run(act)
    show(bundle(board) if board.lines else {"text/plain": f"{text(board)}: it wrote nothing yet"})


def _stop(name: str, jobs: Jobs, show: Show) -> None:
    async def act() -> str:
        if (await jobs.view(name)).finished:
            return f"{name} is over already"
        await jobs.stop(name)
        return f"{name} is stopped"

    show({"text/plain": background.run(act)})


def _remove(name: str, jobs: Jobs, show: Show) -> None:
    async def act() -> str:
        await jobs.remove(name)
        return f"{name} and its logs are forgotten"

    show({"text/plain": background.run(act)})


_ACTS: dict[str, Callable[[str, Jobs, Show], None]] = {
    "show": _show,
    "logs": _logs,
    "stop": _stop,
    "rm": _remove,
}
