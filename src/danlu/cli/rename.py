"""``danlu rename``."""

from __future__ import annotations

import click

from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import EnvironmentNameParam, on_option, verbosity_options
from danlu.cli.session import current_session
from danlu.environments.manage import rename_environment


@declare_command("rename")
@click.argument("old", type=EnvironmentNameParam())
@click.argument("new")
@on_option
@verbosity_options
def command(old: str, new: str) -> None:
    """Rename a stopped environment.

    Its host in SSH configurations changes with it. Commands without a name in its project find it
    if it is the only one there; `danlu up` needs --name NEW.
    """
    run = current_session()
    notes = rename_environment(select_environment(run, old).name, new, run.settings)
    run.terminal.info(f"{old} is now {new}")
    for note in notes:
        run.terminal.info(f"note: {note}")
