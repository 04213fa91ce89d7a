"""``danlu rename``."""

from __future__ import annotations

import click

from danlu.cli.groups import command as declare_command
from danlu.cli.options import EnvironmentNameParam, on_option, verbosity_options
from danlu.cli.session import current_session
from danlu.commands.environments.manage import rename_environment


@declare_command("rename")
@click.argument("old", type=EnvironmentNameParam())
@click.argument("new")
@on_option
@verbosity_options
def command(old: str, new: str) -> None:
    """Rename a stopped environment.

    Its host in SSH configurations changes with it. Use `danlu up --name NEW` afterwards.
    """
    run = current_session()
    rename_environment(old, new, run.settings)
    run.terminal.info(f"{old} is now {new}")
