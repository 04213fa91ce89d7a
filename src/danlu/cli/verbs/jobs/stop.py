"""``danlu jobs stop``."""

from __future__ import annotations

from functools import partial

import click

from danlu.cli.options import on_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.jobs.common import job_argument, jobs_of

__all__ = ["command"]


@click.command(name="stop", short_help="End jobs; what they wrote stays.")
@job_argument("names", nargs=-1, required=True)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long programs have between SIGTERM and SIGKILL.",
)
@on_option()
@verbosity_options
def command(names: tuple[str, ...], grace: float) -> None:
    """End jobs; what they wrote stays."""
    import anyio

    run = session()
    jobs = jobs_of(run)
    for name in names:
        if anyio.run(jobs.view, name).finished:
            run.terminal.say(f"{name} was finished already")
            continue
        anyio.run(partial(jobs.stop, name, grace=grace))
        run.terminal.say(f"stopped {name}")
