"""``danlu jobs``: one module a subcommand, listed in :mod:`danlu.cli.registry`."""

from __future__ import annotations

import click

from danlu.cli.lazy import LazyGroup
from danlu.cli.options import verbosity_options
from danlu.cli.registry import JOBS_COMMANDS, JOBS_SECTIONS

__all__ = ["command"]


@click.command(
    name="jobs",
    cls=LazyGroup,
    entries=JOBS_COMMANDS,
    sections=JOBS_SECTIONS,
    short_help="List, follow, stop and remove training jobs.",
    no_args_is_help=False,
    invoke_without_command=True,
)
@verbosity_options
@click.pass_context
def command(context: click.Context) -> None:
    """List, follow, stop and remove training jobs.

    A replica of a job is named by its type and number: worker-0.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
