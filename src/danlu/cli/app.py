"""The root command: global options, and commands imported when they are used."""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import Any

import click

from danlu.cli.options import verbosity_options
from danlu.cli.registry import COMMANDS, SECTIONS, find

__all__ = ["LazyGroup", "root"]

_ABOUT = """From a laptop to a cluster in one tool: describe an environment with Python functions,
lock it, build it into an OCI image in seconds, and work in it."""


class LazyGroup(click.Group):
    """A group whose commands are known by the registry and imported when one is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the registry's order."""
        return [one.name for one in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        entry = find(cmd_name)
        if entry is None:
            return None
        command = importlib.import_module(entry.module).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name in the message."""
        if not ctx.resilient_parsing and find(args[0]) is None and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.list_commands(ctx), 1)
            raise click.UsageError(
                f"there is no command `{args[0]}`"
                + (f", did you mean `{near[0]}`?" if near else ""),
                ctx,
            )
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Names and summaries from the registry, so that completion imports no command."""
        from click.shell_completion import CompletionItem

        items = [
            CompletionItem(one.name, help=one.summary)
            for one in COMMANDS
            if one.name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by section, in the order of the road."""
        width = max(len(one.name) for one in COMMANDS)
        for section in SECTIONS:
            rows = [(o.name.ljust(width), o.summary) for o in COMMANDS if o.section == section]
            with formatter.section(section):
                formatter.write_dl(rows)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Commands first, then the options."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)


def _show_version(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from danlu import __version__
        from danlu.cli.session import session

        session(context).terminal.data(f"danlu {__version__}")
        context.exit()


@click.command(
    cls=LazyGroup,
    name="danlu",
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
