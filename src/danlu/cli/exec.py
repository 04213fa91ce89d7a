"""``danlu exec``."""

from __future__ import annotations

import click

from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_name_option, user_option, verbosity_options
from danlu.cli.program_command import ProgramCommand
from danlu.cli.session import current_session
from danlu.engine.foreground_exec import run_in_foreground, terminal_request
from danlu.engine.types import ExecRequest


@declare_command("exec", cls=ProgramCommand, context_settings={"allow_interspersed_args": False})
@environment_name_option
@user_option
@click.option("-w", "--workdir", default="", metavar="DIR", help="Start in this directory.")
@verbosity_options
@click.argument("args", nargs=-1, required=True, type=click.UNPROCESSED, metavar="CMD...")
def command(name: str, user: str, workdir: str, args: tuple[str, ...]) -> int:
    """Run a program in a running environment.

    CMD may follow --: `danlu exec -- CMD` runs it in the project's environment, with -n in another.

    Exits with the program's own code: 128+n if signal n killed it, 126 if it is not executable,
    127 if it is not found. If danlu fails before the program starts, the code is 125.
    """
    run = current_session()
    environment = select_environment(run, name)
    if run.terminal.can_attach:
        request = terminal_request(args, user=user, directory=workdir)
    else:
        request = ExecRequest(args, user=user, directory=workdir)
    return run_in_foreground(environment, request)
