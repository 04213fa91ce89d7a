"""``danlu start``."""

from __future__ import annotations

from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, verbosity_options
from danlu.cli.session import current_session
from danlu.environments.up import restart_environment


@declare_command("start")
@environment_argument
@verbosity_options
def command(name: str) -> None:
    """Start a stopped environment again.

    It gets its files back, and its services are started. Does nothing if it runs.
    """
    run = current_session()
    result = restart_environment(select_environment(run, name).name, run.settings)
    for note in result.notes:
        run.terminal.info(f"note: {note}")
    state = "started" if result.started else "runs already"
    run.terminal.info(f"{result.environment.name} {state}")
