"""``danlu jobs attach``."""

from __future__ import annotations

from functools import partial

import click

from danlu.cli.options import on_option, progress_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.jobs.common import job_argument, jobs_of

__all__ = ["command"]

#: Lines of each replica that are shown of what was written before.
_TAIL = 10


@click.command(
    name="attach", short_help="Follow a job as `danlu train` does; Ctrl-C leaves it alone."
)
@job_argument()
@click.option(
    "--tail",
    type=click.IntRange(min=0),
    metavar="N",
    default=_TAIL,
    show_default=True,
    help="Lines of each replica from before.",
)
@progress_option
@on_option()
@verbosity_options
def command(name: str, tail: int, progress: str) -> int:
    """Follow a job as `danlu train` does; Ctrl-C leaves it alone.

    The exit code is 1 where the job failed.
    """
    import anyio

    from danlu.cli.jobs import make
    from danlu.cli.jobs.foreground import attached
    from danlu.cli.jobs.report import finished
    from danlu.commands.jobreport import at

    run = session()
    jobs = jobs_of(run)
    run.progress = progress
    renderer = make(progress, run.terminal)
    try:
        followed = anyio.run(partial(attached, jobs, name, renderer, tail=tail))
    finally:
        renderer.stop()
    if followed.view is None or followed.signal:
        run.terminal.say(f"{name} goes on; `danlu jobs stop {name}{at(run.on)}` ends it")
        return 128 + followed.signal
    finished(run, jobs, followed.view)
    return 0
