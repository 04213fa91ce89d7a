"""``danlu ps``."""

from __future__ import annotations

from datetime import UTC, datetime

from danlu.cli.groups import command as declare_command
from danlu.cli.options import format_option, on_option, verbosity_options
from danlu.cli.output import TableCell, print_json, print_table
from danlu.cli.session import current_session
from danlu.commands.environments.manage import (
    DamagedEnvironmentView,
    EnvironmentView,
    list_environment_views,
    seconds_since,
)
from danlu.engine.environment_directory import EnvironmentState
from danlu.util.human import format_age

_STYLES = {"Running": "green", "Starting": "yellow", "Failed": "red", "Stopped": ""}


@declare_command("ps")
@format_option()
@on_option
@verbosity_options
def command(form: str) -> None:
    """List running and stopped environments.

    With -q only names are printed. Training jobs are listed by `danlu jobs ls`.
    """
    run = current_session()
    views = list(list_environment_views(run.paths))
    if form == "json":
        print_json([view.to_json() for view in views], run.terminal)
    elif run.quiet:
        for view in views:
            run.terminal.write_stdout(view.name)
    elif views:
        now = datetime.now(UTC)
        head = ["NAME", "STATE", "SINCE", "SERVICES", "PORTS", "PROJECT"]
        print_table(head, [_describe_row(view, now) for view in views], run.terminal)
        for view in views:
            if isinstance(view, DamagedEnvironmentView):
                run.terminal.info(f"warning: {view.error.message}")
                run.terminal.info(f"hint: {view.error.hint}")
            elif view.state.phase == "Failed" or ":" in view.state.reason:
                run.terminal.info(f"{view.name}: {view.state.reason}")
    else:
        run.terminal.info("no environments; `danlu up` starts the project's")


def _describe_row(
    view: EnvironmentView | DamagedEnvironmentView, now: datetime
) -> list[str | TableCell]:
    if isinstance(view, DamagedEnvironmentView):
        return [view.name, TableCell("Damaged", "red"), "-", "-", "-", "-"]
    state = view.state
    services = sum(service.running for service in state.services)
    ports = ", ".join(f"{port.address}:{port.host_port}" for port in view.spec.listed_ports)
    since = state.ended or state.started
    return [
        view.name,
        TableCell(_describe_phase(state), _STYLES[state.phase]),
        format_age(seconds_since(since, now)) if since else "-",
        f"{services}/{len(view.spec.services)}" if view.spec.services else "-",
        ports or "-",
        view.spec.project or "-",
    ]


def _describe_phase(state: EnvironmentState) -> str:
    """Return the phase, with the cause if an environment has stopped by itself."""
    cause = state.reason.partition(":")[0]
    if state.phase != "Stopped" or state.stopped_by_user or not cause:
        return state.phase
    return f"{state.phase} ({cause})"
