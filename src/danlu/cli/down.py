"""``danlu down``."""

from __future__ import annotations

from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, stop_grace_option, verbosity_options
from danlu.cli.session import current_session
from danlu.commands.environments.manage import take_down


@declare_command("down")
@environment_argument
@stop_grace_option
@verbosity_options
def command(name: str, grace: int) -> None:
    """Stop and remove an environment.

    Files outside the project and mounts are lost; the image stays.
    """
    run = current_session()
    environment = select_environment(run, name)
    take_down(environment.name, run.settings, grace=grace)
    run.terminal.info(f"{environment.name} removed")
