"""``danlu stop``."""

from __future__ import annotations

from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, stop_grace_option, verbosity_options
from danlu.cli.session import current_session
from danlu.environments.manage import stop_environment
from danlu.environments.processes import list_user_programs
from danlu.util.sanitize import escape_unprintable

_MAX_LISTED = 5


@declare_command("stop")
@environment_argument
@stop_grace_option
@verbosity_options
def command(name: str, grace: int) -> None:
    """Stop an environment; its files stay.

    All its programs end. `danlu start` starts its services again.
    """
    run = current_session()
    environment = select_environment(run, name)
    known = environment.read_state().warnings
    programs = list_user_programs(environment)
    if not stop_environment(environment, grace=grace):
        run.terminal.info(f"{environment.name} is not running")
        return
    for program in programs[:_MAX_LISTED]:
        # The program may have chosen its name.
        run.terminal.info(f"ended: {escape_unprintable(program)}")
    if len(programs) > _MAX_LISTED:
        run.terminal.info(f"ended: {len(programs) - _MAX_LISTED} more programs")
    for warning in environment.read_state().warnings:
        if warning not in known:
            run.terminal.info(f"note: {warning}")
    run.terminal.info(f"{environment.name} stopped; `danlu start {environment.name}` starts it")
