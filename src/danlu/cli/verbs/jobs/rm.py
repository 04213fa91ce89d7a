"""``danlu jobs rm``."""

from __future__ import annotations

from functools import partial

import click

from danlu.cli.options import on_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.jobs.common import job_argument, jobs_of

__all__ = ["command"]


@click.command(name="rm", short_help="Forget finished jobs and what they wrote.")
@job_argument("names", nargs=-1)
@click.option("--force", is_flag=True, help="Stop those that run first.")
@click.option("--all", "everything", is_flag=True, help="All that are finished.")
@on_option()
@verbosity_options
def command(names: tuple[str, ...], force: bool, everything: bool) -> None:
    """Forget finished jobs and what they wrote."""
    import anyio

    run = session()
    jobs = jobs_of(run)
    if bool(names) == everything:
        raise click.UsageError("name the jobs, or say --all")
    chosen = names or tuple(anyio.run(jobs.names))
    for name in chosen:
        done = anyio.run(jobs.view, name).finished
        if not done and everything and not force:
            continue
        if not done and force:
            anyio.run(partial(jobs.stop, name, grace=1.0))
        anyio.run(jobs.remove, name)
        run.terminal.say(f"removed {name}")
