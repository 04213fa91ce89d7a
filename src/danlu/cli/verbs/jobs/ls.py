"""``danlu jobs ls``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from danlu.cli.options import format_option, on_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.jobs.common import jobs_of

if TYPE_CHECKING:
    from datetime import datetime

    from danlu.jobs.types import JobView

__all__ = ["command"]

_HEAD = ("NAME", "STATE", "KIND", "REPLICAS", "CREATED", "TOOK")


@click.command(name="ls", short_help="List the jobs there are.")
@format_option()
@on_option()
@verbosity_options
def command(form: str) -> None:
    """List the jobs there are, of this machine or of a cluster's namespace.

    With -q only their names. REPLICAS counts those that run, of all.
    """
    from datetime import UTC, datetime

    import anyio

    from danlu.cli.output import print_json, print_table
    from danlu.commands.jobs import fields, views

    run = session()
    found = anyio.run(views, jobs_of(run))
    if form == "json":
        print_json([fields(one) for one in found], run.terminal)
    elif run.quiet:
        for one in found:
            run.terminal.data(one.name)
    else:
        now = datetime.now(UTC)
        print_table(_HEAD, [_row(one, now) for one in found], run.terminal, right=(3,))


def _row(view: JobView, now: datetime) -> tuple[str, ...]:
    from danlu.cli.units import ago, duration
    from danlu.commands.jobreport import seconds_of

    running = sum(one.state == "Running" for one in view.replicas)
    created = ago((now - view.created).total_seconds()) if view.created else "-"
    took = seconds_of(view)
    return (
        view.name,
        view.state,
        view.kind,
        f"{running}/{len(view.replicas)}",
        created,
        "-" if took is None else duration(took),
    )
