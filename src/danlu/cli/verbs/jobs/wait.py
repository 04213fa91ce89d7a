"""``danlu jobs wait``."""

from __future__ import annotations

import click

from danlu.cli.options import on_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.jobs.common import job_argument, jobs_of

__all__ = ["command"]


@click.command(
    name="wait", short_help="Wait until jobs are finished; exits with 1 where one failed."
)
@job_argument("names", nargs=-1, required=True)
@on_option()
@verbosity_options
def command(names: tuple[str, ...]) -> int:
    """Wait until jobs are finished; exits with 1 where one failed."""
    import anyio

    from danlu.cli.jobs.report import finished
    from danlu.cli.messages import render
    from danlu.commands.jobs import finished_view
    from danlu.errors import JobFailed

    run = session()
    jobs = jobs_of(run)
    failed = False
    for name in names:
        view = anyio.run(finished_view, jobs, name)
        try:
            finished(run, jobs, view)
        except JobFailed as error:
            failed = True
            render(error, run.terminal)
    return 1 if failed else 0
