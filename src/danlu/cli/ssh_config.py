"""``danlu ssh-config``."""

from __future__ import annotations

from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, verbosity_options
from danlu.cli.session import current_session
from danlu.commands.environments.ssh_hosts import render_ssh_host
from danlu.engine.environment_directory import list_environments


@declare_command("ssh-config")
@environment_argument
@verbosity_options
def command(name: str) -> None:
    """Print the SSH configuration of an environment, or of all.

    `danlu up` writes the same to its own file, which ~/.ssh/config includes.
    """
    run = current_session()
    chosen = [select_environment(run, name)] if name else list_environments(run.paths.environments)
    blocks = [render_ssh_host(environment) for environment in chosen]
    if blocks:
        run.terminal.write_stdout("\n".join(blocks).rstrip("\n"))
