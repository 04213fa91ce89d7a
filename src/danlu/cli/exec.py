"""``danlu exec``."""

from __future__ import annotations

import time

import click

from danlu.cli.command_stamp import write_stamp
from danlu.cli.environment_selection import select_default_name, select_environment
from danlu.cli.environment_stamp import split_exec
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_name_option, user_option, verbosity_options
from danlu.cli.program_command import ProgramCommand
from danlu.cli.session import Session, current_session
from danlu.engine.environment_control import encode_exec, terminal_request
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.foreground_exec import exec_in_foreground
from danlu.engine.types import ExecRequest
from danlu.project.project import BUILD_FILES
from danlu.util.epoch import read_epoch


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
    started, epoch = time.time(), read_epoch(run.paths.store / "epoch")
    environment = select_environment(run, name)
    _write_stamp(run, environment, name, epoch, started)
    if run.terminal.can_attach:
        request = terminal_request(args, user=user, directory=workdir)
    else:
        request = ExecRequest(args, user=user, directory=workdir)
    directory = environment.directory
    return exec_in_foreground(directory, encode_exec(request), terminal=request.terminal)


def _write_stamp(
    run: Session, environment: EnvironmentDirectory, name: str, epoch: str, started: float
) -> None:
    """Let the next `danlu exec` find the environment without loading the program."""
    split = split_exec(run.arguments)
    if split is None or not (name or environment.name == select_default_name(run)):
        return
    depends_on = [
        environment.spec_file,
        run.paths.config_file,
        run.paths.config / "contexts.json",
        *(run.directory / file for file in BUILD_FILES if not name),
    ]
    answer = {"environment": str(environment.directory)}
    write_stamp(split[0], depends_on=depends_on, epoch=epoch, started=started, answer=answer)
