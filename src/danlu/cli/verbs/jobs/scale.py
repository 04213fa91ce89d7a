"""``danlu jobs scale``."""

from __future__ import annotations

from functools import partial

import click

from danlu.cli.options import on_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.jobs.common import job_argument, jobs_of

__all__ = ["command"]


@click.command(name="scale", short_help="Ask for another number of replicas.")
@job_argument()
@click.argument("numbers", nargs=-1, required=True, metavar="TYPE=N...")
@on_option()
@verbosity_options
def command(name: str, numbers: tuple[str, ...]) -> None:
    """Ask for another number of replicas."""
    import anyio

    from danlu.commands.jobs import scaling

    run = session()
    anyio.run(partial(jobs_of(run).scale, name, replicas=scaling(numbers)))
    run.terminal.say(f"{name}: {', '.join(numbers)}")
