"""``danlu down``."""

from __future__ import annotations

from danlu.changes.discarded_changes import describe_discarded_changes
from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, stop_grace_option, verbosity_options
from danlu.cli.session import current_session
from danlu.environments.manage import take_down


@declare_command("down")
@environment_argument
@stop_grace_option
@verbosity_options
def command(name: str, grace: int) -> None:
    """Stop and remove an environment.

    Files outside the project and mounts are lost, and counted; the image stays. `danlu commit`
    keeps them.
    """
    run = current_session()
    environment = select_environment(run, name)
    discarded = describe_discarded_changes(environment)
    take_down(environment.name, run.settings, grace=grace)
    run.terminal.info(f"{environment.name} removed")
    if discarded:
        run.terminal.info(f"note: {discarded}")
