"""The root command: global options, and commands imported when they are used."""

from __future__ import annotations

import click

from danlu.cli.lazy import LazyGroup
from danlu.cli.options import verbosity_options
from danlu.cli.registry import COMMANDS, SECTIONS

__all__ = ["root"]

_ABOUT = """From a laptop to a cluster in one tool: describe an environment with Python functions,
lock it, build it into an OCI image in seconds, and work in it."""


def _show_version(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from danlu import __version__
        from danlu.cli.session import session

        session(context).terminal.data(f"danlu {__version__}")
        context.exit()


@click.command(
    cls=LazyGroup,
    name="danlu",
    entries=COMMANDS,
    sections=SECTIONS,
    help=_ABOUT,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
    invoke_without_command=True,
)
@verbosity_options
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show danlu's version.",
)
@click.pass_context
def root(context: click.Context) -> None:
    """Show the help where no command is given."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
