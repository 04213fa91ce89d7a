"""``danlu jobs logs``."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from danlu.cli.options import format_option, on_option, verbosity_options
from danlu.cli.session import Session, session
from danlu.cli.verbs.jobs.common import job_argument, jobs_of
from danlu.errors import DanluError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from danlu.cli.terminal import Terminal
    from danlu.jobs.types import Jobs, JobView, LogLine

__all__ = ["command"]


@click.command(name="logs", short_help="Write what a job's replicas wrote.")
@job_argument()
@click.argument("replicas", nargs=-1, metavar="[REPLICA]...")
@click.option("--follow", is_flag=True, help="Wait for more until the job is finished.")
@click.option(
    "--tail", type=click.IntRange(min=0), metavar="N", help="Only so many lines of each replica."
)
@click.option("--timestamps", is_flag=True, help="Say when each line was written.")
@format_option()
@on_option()
@verbosity_options
def command(
    name: str,
    replicas: tuple[str, ...],
    follow: bool,
    tail: int | None,
    timestamps: bool,
    form: str,
) -> None:
    """Write what a job's replicas wrote.

    Of one replica that is named, a stdout that is no terminal gets the bytes as they were
    written; otherwise each line begins with its replica, and control sequences are left out.
    REPLICA may also be a type: worker.
    """
    import anyio

    from danlu.commands.jobs import replicas_of

    run = session()
    jobs = jobs_of(run)
    view = anyio.run(jobs.view, name)
    wanted = replicas_of(replicas, view)
    raw = len(wanted) == 1 and not run.terminal.out_is_terminal and not timestamps
    write = _as_json(run) if form == "json" else _writer(run, view, raw=raw, stamps=timestamps)
    copy = partial(
        _copy, partial(jobs.logs, name, replicas=wanted, follow=follow, tail=tail), write
    )
    anyio.run(partial(_warning, copy, jobs, name, run.terminal) if follow else copy)


async def _copy(
    lines: Callable[[], AsyncIterator[LogLine]], write: Callable[[LogLine], None]
) -> None:
    async for line in lines():
        write(line)


async def _warning(
    copy: Callable[[], Awaitable[None]], jobs: Jobs, name: str, terminal: Terminal
) -> None:
    """Say meanwhile why nothing may come: what the job's views warn of."""
    import anyio

    from danlu.cli.jobs.warned import Warned

    async def warn() -> None:
        warned = Warned(terminal)
        # What is wrong here is wrong with the lines too, which say so.
        with suppress(DanluError):
            async for view in jobs.watch(name):
                warned.view(view)

    async with anyio.create_task_group() as group:
        group.start_soon(warn)
        await copy()
        group.cancel_scope.cancel()


def _writer(run: Session, view: JobView, *, raw: bool, stamps: bool) -> Callable[[LogLine], None]:
    from danlu.cli.jobs.lines import Prefixes, rendered

    terminal = run.terminal
    if raw:
        return lambda line: terminal.data_bytes(line.data + (b"\n" if line.whole else b""))
    prefixes = Prefixes(terminal.out_style, unicode=terminal.out_unicode)
    prefixes.know(one.id for one in view.replicas)
    return lambda line: terminal.data(rendered(line, prefixes, timestamps=stamps))


def _as_json(run: Session) -> Callable[[LogLine], None]:
    import json

    def write(line: LogLine) -> None:
        values: dict[str, Any] = {
            "replica": str(line.replica),
            "attempt": line.attempt,
            "number": line.number,
            "time": line.time.isoformat(),
            "text": line.data.decode(errors="replace"),
        }
        run.terminal.data(json.dumps(values, ensure_ascii=False))

    return write
