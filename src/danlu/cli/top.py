"""``danlu top``."""

from __future__ import annotations

from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, format_option, verbosity_options
from danlu.cli.output import print_json, print_table
from danlu.cli.session import current_session
from danlu.commands.environments.processes import measure_processes
from danlu.engine.environment_control import not_running_error
from danlu.util.human import format_size

_MAX_COMMAND = 100


@declare_command("top")
@environment_argument
@format_option()
@verbosity_options
def command(name: str, form: str) -> None:
    """Show the processes of an environment.

    With the cores and the memory that they use.
    """
    run = current_session()
    environment = select_environment(run, name)
    if not environment.is_running():
        raise not_running_error(environment.name)
    rows = measure_processes(environment)
    if form == "json":
        keys = ("pid", "cpu", "memory", "command")
        print_json([{key: getattr(row, key) for key in keys} for row in rows], run.terminal)
        return
    cells = [
        [str(row.pid), f"{row.cpu:.2f}", format_size(row.memory), row.command[:_MAX_COMMAND]]
        for row in rows
    ]
    print_table(["PID", "CPU", "MEMORY", "COMMAND"], cells, run.terminal, right=(0, 1, 2))
