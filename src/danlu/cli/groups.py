"""Command groups: sections in the help, suggestions for unknown commands, lazy loading.

The root group knows its commands by name and imports the module of one only when it is used.
Modules of commands therefore import what they need at the top.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from danlu.cli.options import verbosity_options
from danlu.util.suggest import closest_match

#: The page of the commands in the repository. There is no site yet.
REFERENCE_PAGE = "docs/reference/cli.md"

#: Names that users of kubectl, Docker and envd type, and ours for the same thing.
_SYNONYMS = {
    "delete": "rm",
    "describe": "show",
    "get": "ls",
    "inspect": "show",
    "kill": "stop",
    "cancel": "stop",
    "list": "ls",
    "remove": "rm",
    "rmi": "rm",
}


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command of the root group: what ``danlu --help`` shows, without importing its module.

    ``summary`` repeats the first line of the command's own help; a test compares them.
    """

    name: str
    section: str
    summary: str

    @property
    def module(self) -> str:
        """The module that defines ``command``."""
        return f"danlu.cli.{self.name.replace('-', '_')}"


class DocumentedCommand(click.Command):
    """A command whose help ends with where its reference is."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the section of the reference: a file of the checkout that danlu runs from."""
        anchor = ctx.command_path.replace(" ", "-")
        page = Path(__file__).parents[3] / REFERENCE_PAGE
        place = f"{page}#{anchor}" if page.is_file() else f"{REFERENCE_PAGE} of danlu's repository"
        formatter.write_paragraph()
        formatter.write(f"Documentation: {place}\n")


class SectionedGroup(DocumentedCommand, click.Group):
    """A group that lists its commands by section, in the order they are declared.

    ``hints`` maps names that users of other tools may type to what they should use instead.
    """

    command_class = DocumentedCommand

    def __init__(self, *args: Any, hints: dict[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hints = hints or {}
        self.sections: dict[str, list[str]] = {}

    def subcommand(
        self, name: str, *, section: str = "Commands", **attributes: Any
    ) -> Callable[[Callable[..., Any]], click.Command]:
        """Declare a command of this group, listed under ``section``."""

        def declare(function: Callable[..., Any]) -> click.Command:
            self.sections.setdefault(section, []).append(name)
            return self.command(name, **attributes)(function)

        return declare

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        return [name for names in self.sections.values() for name in names]

    def summarize(self, ctx: click.Context, name: str) -> str:
        """Return the first line of a command's help."""
        found = self.get_command(ctx, name)
        return (found.help or "").strip().partition("\n")[0] if found is not None else ""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or raise an error that says what to use instead."""
        name = args[0]
        names = self.list_commands(ctx)
        if name not in names and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(
                f"unknown command `{name}`{self._suggest_command(name, names)}", ctx
            )
        return super().resolve_command(ctx, args)

    def _suggest_command(self, name: str, names: Sequence[str]) -> str:
        if name in self.hints:
            return f": {self.hints[name]}"
        match = _SYNONYMS.get(name, "")
        if match not in names:
            match = closest_match(name, names)
        return f", did you mean `{match}`?" if match else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section."""
        width = max(map(len, self.list_commands(ctx)))
        for section, names in self.sections.items():
            with formatter.section(section):
                formatter.write_dl(
                    [(name.ljust(width), self.summarize(ctx, name)) for name in names]
                )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands first, then the options."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)


class RunnableGroup(SectionedGroup):
    """A command with arguments that also has subcommands: ``serve REF``, ``serve ls``.

    The first word decides, so an argument that has the name of a subcommand needs another spelling.
    """

    # Those of a command: options may follow arguments, and further words are errors.
    allow_extra_args = False
    allow_interspersed_args = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments of the command itself, or leave them to a subcommand."""
        if args and args[0] in self.commands:
            ctx.invoked_subcommand = args[0]
            ctx.args = args
            return args
        return click.Command.parse_args(self, ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters; none for a subcommand, whose path they are no part of."""
        return super().get_params(ctx) if ctx.command is self else []

    def invoke(self, ctx: click.Context) -> Any:
        """Call the subcommand, or the command itself."""
        if ctx.invoked_subcommand is None:
            return click.Command.invoke(self, ctx)
        name, found, args = self.resolve_command(ctx, ctx.args)
        assert name is not None
        assert found is not None
        with found.make_context(name, args, parent=ctx) as inner:
            return found.invoke(inner)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the words of the command itself; subcommands are listed below it."""
        return click.Command.collect_usage_pieces(self, ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options first, then the subcommands."""
        click.Command.format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


class LazyGroup(SectionedGroup):
    """A group that imports the module of a command when the command is used."""

    def __init__(self, *args: Any, specs: Sequence[CommandSpec], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.specs = {spec.name: spec for spec in specs}
        for spec in specs:
            self.sections.setdefault(spec.section, []).append(spec.name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        spec = self.specs.get(cmd_name)
        if spec is None:
            return None
        loaded = importlib.import_module(spec.module).command
        assert isinstance(loaded, click.Command)
        return loaded

    def summarize(self, ctx: click.Context, name: str) -> str:
        """Return the summary of the registry, so that the help imports no command."""
        return self.specs[name].summary

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete names from the registry, so that completion imports no command."""
        items = [
            CompletionItem(spec.name, help=spec.summary)
            for spec in self.specs.values()
            if spec.name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)


def command(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a command of the root group; its module is named after it."""
    return click.command(name, cls=attributes.pop("cls", DocumentedCommand), **attributes)


def group(name: str, *, help: str) -> SectionedGroup:
    """Create a group of commands, which prints its help if no command is given."""

    @verbosity_options
    @click.pass_context
    def show_help(context: click.Context) -> None:
        if context.invoked_subcommand is None:
            click.echo(context.get_help())

    return click.command(
        name, cls=SectionedGroup, help=help, no_args_is_help=False, invoke_without_command=True
    )(show_help)
