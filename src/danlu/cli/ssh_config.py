"""``danlu ssh-config``."""

from __future__ import annotations

from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, verbosity_options
from danlu.cli.session import Session, current_session
from danlu.engine.environment_directory import list_environments
from danlu.environments.ssh_hosts import render_ssh_host
from danlu.remote.environment_link import EnvironmentLink, open_environment_link


@declare_command("ssh-config")
@environment_argument
@verbosity_options
def command(name: str) -> None:
    """Print the SSH configuration of an environment, or of all.

    `danlu up` writes the same to its own file, which ~/.ssh/config includes.
    """
    run = current_session()
    link = open_environment_link(run.named_context, run.settings, run.terminal.info)
    blocks = _render_blocks(run, name) if link is None else _render_remote_blocks(link, name)
    if blocks:
        run.terminal.write_stdout("\n".join(blocks).rstrip("\n"))


def _render_blocks(run: Session, name: str) -> list[str]:
    chosen = [select_environment(run, name)] if name else list_environments(run.paths.environments)
    return [render_ssh_host(environment) for environment in chosen]


def _render_remote_blocks(link: EnvironmentLink, name: str) -> list[str]:
    if name:
        link.find_target(name)
    else:
        link.update()
    return [link.hosts.render(known) for known in link.hosts.list_names() if name in ("", known)]
