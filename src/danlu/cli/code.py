"""``danlu code``."""

from __future__ import annotations

import sys

import click

from danlu.cli.environment_selection import select_default_name, select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, verbosity_options
from danlu.cli.session import Session, current_session
from danlu.environments.editors import (
    EDITORS,
    EditorTarget,
    environment_target,
    format_editor_uri,
    open_editor,
)
from danlu.environments.ssh import require_running
from danlu.remote.environment_link import open_environment_link


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
    target = _find_remote_target(run, name) or _find_target(run, name)
    opened = False if only_print else open_editor(target, editor)
    run.terminal.write_stdout(format_editor_uri(target, editor))
    if not opened and not only_print:
        run.terminal.info(f"{editor} was not found here; open the address above")


def _find_target(run: Session, name: str) -> EditorTarget:
    environment = select_environment(run, name)
    interactive = sys.stdin is not None and sys.stdin.isatty()
    for note in require_running(environment, run.settings, interactive=interactive):
        run.terminal.info(note)
    return environment_target(environment, run.settings)


def _find_remote_target(run: Session, name: str) -> EditorTarget | None:
    """Return what to open on the context's machine; None if that is this one."""
    link = open_environment_link(run.named_context, run.settings, run.terminal.info)
    return None if link is None else link.find_target(name or select_default_name(run))
