"""A group whose commands are known by a registry and imported when one is used."""

from __future__ import annotations

import importlib
from typing import Any

import click

from danlu.cli.registry import Entry, find

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """Commands of ``entries``, in their order, by section of the help."""

    def __init__(
        self,
        *arguments: Any,
        entries: tuple[Entry, ...] = (),
        sections: tuple[str, ...] = (),
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self.entries = entries
        self.sections = sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the registry's order."""
        return [one.name for one in self.entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        entry = find(cmd_name, self.entries)
        if entry is None:
            return None
        command = importlib.import_module(entry.module).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name in the message."""
        name = args[0]
        unknown = find(name, self.entries) is None and not name.startswith("-")
        if unknown and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(name, self.list_commands(ctx), 1)
            instead = f", did you mean `{near[0]}`?" if near else ""
            raise click.UsageError(f"there is no command `{name}`{instead}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Names and summaries from the registry, so that completion imports no command."""
        from click.shell_completion import CompletionItem

        items = [
            CompletionItem(one.name, help=one.summary)
            for one in self.entries
            if one.name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by section, in the registry's order."""
        width = max(len(one.name) for one in self.entries)
        for section in self.sections:
            rows = [(o.name.ljust(width), o.summary) for o in self.entries if o.section == section]
            with formatter.section(section):
                formatter.write_dl(rows)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Commands first, then the options."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)
