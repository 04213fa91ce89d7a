"""``danlu code``."""

from __future__ import annotations

import sys

import click

from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, verbosity_options
from danlu.cli.session import current_session
from danlu.commands.environments.editors import EDITORS, format_editor_uri, open_editor
from danlu.commands.environments.ssh import require_running


@declare_command("code")
@environment_argument
@click.option(
    "--editor",
    type=click.Choice(tuple(EDITORS)),
    default="code",
    show_default=True,
    help="The editor to open.",
)
@click.option("--print", "only_print", is_flag=True, help="Print the address only.")
@verbosity_options
def command(name: str, editor: str, only_print: bool) -> None:
    """Open an environment in VS Code over SSH.

    Prints the address, which opens it too. Needs the extension Remote-SSH, or Open Remote - SSH in
    VSCodium.
    """
    run = current_session()
    environment = select_environment(run, name)
    interactive = sys.stdin is not None and sys.stdin.isatty()
    for note in require_running(environment, run.settings, interactive=interactive):
        run.terminal.info(note)
    opened = False if only_print else open_editor(environment, run.settings, editor)
    run.terminal.write_stdout(format_editor_uri(environment, editor))
    if not opened and not only_print:
        run.terminal.info(f"{editor} was not found here; open the address above")
