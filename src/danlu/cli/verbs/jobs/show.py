"""``danlu jobs show``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from danlu.cli.options import format_option, on_option, verbosity_options
from danlu.cli.session import Session, session
from danlu.cli.verbs.jobs.common import job_argument, jobs_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from danlu.jobs.types import Jobs, JobView

__all__ = ["command"]


@click.command(name="show", short_help="Show one job: its state, its replicas, what happened.")
@job_argument()
@click.option(
    "--command",
    "replica",
    default="",
    metavar="REPLICA",
    help="Only the line that runs this replica alone in a shell, with its environment.",
)
@format_option()
@on_option()
@verbosity_options
def command(name: str, replica: str, form: str) -> None:
    """Show one job: its state, its replicas, what happened."""
    import anyio

    from danlu.cli.output import print_json
    from danlu.commands.jobs import fields

    run = session()
    jobs = jobs_of(run)
    view = anyio.run(jobs.view, name)
    if replica:
        _command(run, jobs, view, replica=replica, form=form)
    elif form == "json":
        print_json(fields(view), run.terminal)
    else:
        _text(run, view)


def _command(run: Session, jobs: Jobs, view: JobView, *, replica: str, form: str) -> None:
    import anyio
    import msgspec

    from danlu.cli.output import print_json
    from danlu.commands.jobreport import shell_line
    from danlu.commands.jobs import replica_of

    found = anyio.run(jobs.command, view.name, replica_of(replica, view))
    if form == "json":
        print_json(msgspec.to_builtins(found), run.terminal)
        return
    run.terminal.data(shell_line(found, project=view.directory))


def _text(run: Session, view: JobView) -> None:
    from danlu.cli.jobs.table import HEAD, cells
    from danlu.cli.output import print_table
    from danlu.cli.terminal import clean

    terminal = run.terminal
    for name, value in _rows(view):
        terminal.data(f"{terminal.out_style(name.ljust(11), 'bold')} {clean(value)}")
    if view.replicas:
        terminal.data("")
        print_table(HEAD, [cells(one) for one in view.replicas], terminal, right=(2, 3, 4, 5))


def _rows(view: JobView) -> Iterator[tuple[str, str]]:
    from danlu.cli.jobs.table import measures
    from danlu.cli.units import duration
    from danlu.commands.jobreport import reason, seconds_of

    yield "job", view.name
    yield "state", view.state
    yield "kind", f"{view.kind} ({view.framework})"
    took = seconds_of(view)
    if view.created is not None:
        yield "created", f"{view.created:%Y-%m-%d %H:%M:%S} UTC"
    if took is not None:
        yield "took", duration(took)
    if view.directory:
        yield "directory", view.directory
    if view.progress is not None:
        percent = view.progress.percentage
        yield "progress", f"{'' if percent is None else f'{percent} %  '}{measures(view.progress)}"
    for place, one in enumerate(view.status.conditions):
        stamp = f"{one.last_transition_time:%H:%M:%S} " if one.last_transition_time else ""
        words = f"{stamp}{one.type}={one.status} {one.reason}: {one.message}"
        yield "" if place else "conditions", words.rstrip(": ")
    for text in view.warnings:
        yield "warning", text
    first = view.status.first_failure
    if first is not None:
        why = reason(first.exit_code, first.reason, first.message)
        yield "failed 1st", f"{first.replica}: {why}"
