"""``danlu logs``."""

from __future__ import annotations

import time

import click

from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, verbosity_options
from danlu.cli.session import current_session
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.errors import UsageError
from danlu.util.rotating_log import LogFollower

_POLL_SECONDS = 0.1


@declare_command("logs")
@environment_argument
@click.argument("service", default="", metavar="[SERVICE]")
@click.option("-f", "--follow", is_flag=True, help="Wait for more output until Ctrl-C.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@verbosity_options
def command(name: str, service: str, follow: bool, tail: int | None) -> None:
    """Print the output of an environment's services.

    Without SERVICE all are printed, one after the other; `init` has the output of init commands.
    Logs of training jobs are printed by `danlu jobs logs`.
    """
    run = current_session()
    environment = select_environment(run, name)
    names = _choose_logs(environment, service)
    if not names:
        run.terminal.info(f"{environment.name} has no services")
    followers = {name: LogFollower(environment.log_file(name), tail=tail) for name in names}
    last = ""
    while True:
        for log, follower in followers.items():
            data = follower.read()
            if data and len(followers) > 1 and log != last:
                run.terminal.write_stdout(f"==> {log} <==")
            if data:
                run.terminal.write_stdout_bytes(data)
                last = log
        if not follow or not followers or not environment.exists():
            return
        time.sleep(_POLL_SECONDS)


def _choose_logs(environment: EnvironmentDirectory, service: str) -> list[str]:
    known = environment.log_names()
    if not service:
        return known
    if service not in known:
        raise UsageError(
            f"environment {environment.name} has no log of {service}",
            hint=f"it has: {', '.join(known) or 'none'}",
        )
    return [service]
