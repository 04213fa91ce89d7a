"""``danlu kernel``: one module a subcommand, listed in :mod:`danlu.cli.registry`."""

from __future__ import annotations

import click

from danlu.cli.lazy import LazyGroup
from danlu.cli.options import verbosity_options
from danlu.cli.registry import KERNEL_COMMANDS, KERNEL_SECTIONS

__all__ = ["command"]


@click.command(
    name="kernel",
    cls=LazyGroup,
    entries=KERNEL_COMMANDS,
    sections=KERNEL_SECTIONS,
    short_help="Install danlu's kernel for Jupyter.",
    no_args_is_help=False,
    invoke_without_command=True,
)
@verbosity_options
@click.pass_context
def command(context: click.Context) -> None:
    """Install danlu's kernel for Jupyter.

    It is IPython's kernel, run by this Python, whose cells may be training jobs.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
