"""``danlu jobs resume``."""

from __future__ import annotations

from functools import partial

import click

from danlu.cli.options import on_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.jobs.common import job_argument, jobs_of

__all__ = ["command"]


@click.command(name="resume", short_help="Let suspended jobs go on.")
@job_argument("names", nargs=-1, required=True)
@on_option()
@verbosity_options
def command(names: tuple[str, ...]) -> None:
    """Let suspended jobs go on."""
    import anyio

    run = session()
    jobs = jobs_of(run)
    for name in names:
        anyio.run(partial(jobs.suspend, name, suspended=False))
        run.terminal.say(f"resumed {name}")
