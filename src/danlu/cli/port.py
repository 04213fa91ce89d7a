"""``danlu port``."""

from __future__ import annotations

from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, format_option, verbosity_options
from danlu.cli.output import print_json, print_table
from danlu.cli.session import current_session
from danlu.environments.manage import read_environment_view


@declare_command("port")
@environment_argument
@format_option()
@verbosity_options
def command(name: str, form: str) -> None:
    """List the ports of an environment."""
    run = current_session()
    view = read_environment_view(select_environment(run, name))
    if form == "json":
        print_json(view.to_json()["ports"], run.terminal)
        return
    if not view.spec.listed_ports:
        run.terminal.info(f"{view.name} exposes no ports; `danlu up --port PORT` exposes one")
        return
    rows = [
        [str(port.port), f"{port.address}:{port.host_port}", port.service or "-"]
        for port in view.spec.listed_ports
    ]
    print_table(["PORT", "ADDRESS", "SERVICE"], rows, run.terminal)
