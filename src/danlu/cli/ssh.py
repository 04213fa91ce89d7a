"""``danlu ssh``."""

from __future__ import annotations

import os
import sys

import click

from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, verbosity_options
from danlu.cli.program_command import ProgramCommand
from danlu.cli.session import current_session
from danlu.environments.ssh import require_running, serve_ssh, ssh_client_command


class _SshCommand(ProgramCommand):
    """Takes what follows ``--`` as the command line, with and without a name before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert an empty name after a leading ``--``, which click would take for nothing."""
        first = next((i for i, word in enumerate(args) if word == "--" or word[:1] != "-"), None)
        if first is not None and args[first] == "--":
            args = [*args[: first + 1], "", *args[first + 1 :]]
        elif first is not None and args[first + 1 : first + 2] == ["--"]:
            args = [*args[: first + 1], *args[first + 2 :]]
        return super().parse_args(ctx, args)


@declare_command("ssh", cls=_SshCommand, context_settings={"allow_interspersed_args": False})
@click.option("--stdio", is_flag=True, help="Serve an SSH client on stdin and stdout.")
@environment_argument
@verbosity_options
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[CMD...]")
def command(name: str, stdio: bool, args: tuple[str, ...]) -> None:
    """Open a shell in an environment over SSH, or run a command in it.

    The host NAME.danlu also works in ssh, scp, sftp, rsync and editors; `danlu up` configures it.
    An environment that ended by itself (a crash, a reboot) is started first; one that `danlu stop`
    stopped is not. As with `danlu exec`, CMD may
    follow --: `danlu ssh -- CMD` runs it in the project's environment.
    """
    run = current_session()
    if stdio:
        if not name or args:
            raise click.UsageError("--stdio takes the name of an environment")
        serve_ssh(name, run.settings)
        return
    # Not for --stdio: every connection of an editor waits for it.
    from danlu.cli.environment_selection import select_environment

    environment = select_environment(run, name)
    interactive = sys.stdin is not None and sys.stdin.isatty()
    for note in require_running(environment, run.settings, interactive=interactive):
        run.terminal.info(note)
    client = ssh_client_command(environment, run.settings, args)
    run.close()
    sys.stdout.flush()
    os.execv(client[0], client)
