"""``danlu config``."""

from __future__ import annotations

import click

from danlu.cli.options import format_option, verbosity_options
from danlu.cli.session import session

__all__ = ["command"]


@click.command(name="config", short_help="Show the configuration, and where it comes from.")
@click.argument("name", required=False)
@format_option()
@verbosity_options
def command(name: str | None, form: str) -> None:
    """Show the configuration, and where it comes from.

    With NAME (such as `builder` or `mirrors`) only that and what is below it. Variables DANLU_*
    win over the file, flags over both.
    """
    from danlu.cli.output import print_json, print_table
    from danlu.commands.config import effective
    from danlu.errors import UsageError

    run = session()
    found = effective(run.paths)
    if name is not None:
        chosen = [one for one in found if one.name == name or one.name.startswith(f"{name}.")]
        if not chosen:
            tops = dict.fromkeys(one.name.partition(".")[0] for one in found)
            raise UsageError(f"there is no setting {name}", hint=f"there are {', '.join(tops)}")
        found = tuple(chosen)
    if form == "json":
        print_json(
            {one.name: {"value": one.value, "from": one.origin} for one in found}, run.terminal
        )
    elif name is not None and len(found) == 1 and found[0].name == name:
        run.terminal.data(_plain(found[0].value))
    else:
        rows = [(one.name, _plain(one.value) or "-", one.origin) for one in found]
        print_table(("SETTING", "VALUE", "FROM"), rows, run.terminal)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return " ".join(str(one) for one in value)
    return "" if value == {} else str(value)
