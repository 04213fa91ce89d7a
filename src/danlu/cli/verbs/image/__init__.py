"""``danlu image``: one module a subcommand, listed in :mod:`danlu.cli.registry`."""

from __future__ import annotations

import click

from danlu.cli.lazy import LazyGroup
from danlu.cli.options import verbosity_options
from danlu.cli.registry import IMAGE_COMMANDS, IMAGE_SECTIONS

__all__ = ["command"]


@click.command(
    name="image",
    cls=LazyGroup,
    entries=IMAGE_COMMANDS,
    sections=IMAGE_SECTIONS,
    short_help="List, inspect, move and remove images.",
    no_args_is_help=False,
    invoke_without_command=True,
)
@verbosity_options
@click.pass_context
def command(context: click.Context) -> None:
    """List, inspect, move and remove images.

    An image is named by a name, by its digest, or by the beginning of its digest.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
