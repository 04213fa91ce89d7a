"""``danlu config``."""

from __future__ import annotations

import click

from danlu.cli.groups import command as declare_command
from danlu.cli.options import format_option, verbosity_options
from danlu.cli.output import print_json, print_table
from danlu.cli.session import current_session
from danlu.errors import UsageError
from danlu.util.effective_settings import list_settings


@declare_command("config")
@click.argument("name", required=False)
@format_option()
@verbosity_options
def command(name: str | None, form: str) -> None:
    """Show the effective configuration and its sources.

    NAME (such as `builder` or `mirrors`) selects one setting or table. Flags override DANLU_*
    variables, which override the configuration file.
    """
    run = current_session()
    settings = list_settings(run.paths)
    if name is not None:
        selected = tuple(
            setting
            for setting in settings
            if setting.name == name or setting.name.startswith(f"{name}.")
        )
        if not selected:
            known = dict.fromkeys(setting.name.partition(".")[0] for setting in settings)
            raise UsageError(f"unknown setting {name!r}", hint=f"settings: {', '.join(known)}")
        settings = selected
    if form == "json":
        values = {
            setting.name: {"value": setting.value, "from": setting.origin} for setting in settings
        }
        print_json(values, run.terminal)
    elif name is not None and len(settings) == 1 and settings[0].name == name:
        run.terminal.write_stdout(_format_value(settings[0].value))
    else:
        rows = [
            (setting.name, _format_value(setting.value) or "-", setting.origin)
            for setting in settings
        ]
        print_table(("SETTING", "VALUE", "FROM"), rows, run.terminal)


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "" if value == {} else str(value)
