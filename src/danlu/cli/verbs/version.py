"""``danlu version``."""

from __future__ import annotations

import click

from danlu.cli.options import format_option, verbosity_options
from danlu.cli.session import session

__all__ = ["command"]


@click.command(name="version", short_help="Show the versions of danlu and of what it stands on.")
@format_option()
@verbosity_options
def command(form: str) -> None:
    """Show the versions of danlu and of what it stands on."""
    from danlu.commands.version import versions

    terminal = session().terminal
    found = versions()
    if form == "json":
        from danlu.cli.output import print_json

        print_json(found, terminal)
        return
    width = max(len(name) for name in found)
    for name, version in found.items():
        terminal.data(f"{name.ljust(width)}  {version or '-'}")
