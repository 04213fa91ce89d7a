"""``danlu ps``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from danlu.cli.groups import command as declare_command
from danlu.cli.options import format_option, on_option, verbosity_options
from danlu.cli.output import TableCell, print_json, print_table
from danlu.cli.session import Session, current_session
from danlu.engine.contexts import Context, read_contexts
from danlu.environments.manage import seconds_since
from danlu.errors import DanluError
from danlu.remote.environment_list import (
    ListedEnvironment,
    list_local_environments,
    list_remote_environments,
    parse_environments,
)
from danlu.util.human import format_age

_STYLES = {"Running": "green", "Starting": "yellow", "Failed": "red", "Damaged": "red"}
_HEAD = ("NAME", "CONTEXT", "STATE", "SINCE", "SERVICES", "PORTS", "GPU", "PROJECT")
_GPU_COLUMN = _HEAD.index("GPU")


@declare_command("ps")
@click.option("-a", "--all", "everywhere", is_flag=True, help="Also list other machines.")
@format_option()
@on_option
@verbosity_options
def command(everywhere: bool, form: str) -> None:
    """List running and stopped environments.

    Lists those of this machine in all engines; with --on, those of one context, and with --all also
    those of the other machines that have a context. With -q only names are printed. Training jobs
    are listed by `danlu jobs ls`.
    """
    run = current_session()
    if everywhere and run.on:
        raise click.UsageError("--all cannot be combined with --on")
    name, context = run.named_context
    if context.is_remote and not everywhere:
        rows = _list_other_machine(run, name, context)
    else:
        rows = list(list_local_environments(run.paths, (name, context) if run.on else None))
    if everywhere:
        rows += _list_other_machines(run)
    if form == "json":
        print_json(rows, run.terminal)
        return
    environments = parse_environments(rows)
    if run.quiet:
        for environment in environments:
            run.terminal.write_stdout(environment.name)
    elif environments:
        _print_environments(environments, run)
    else:
        run.terminal.info("no environments; `danlu up` starts the project's")


def _list_other_machines(run: Session) -> Iterator[dict[str, Any]]:
    """Yield the environments of all contexts on other machines; name those out of reach."""
    for name, context in read_contexts(run.paths).contexts.items():
        if not context.is_remote:
            continue
        try:
            yield from _list_other_machine(run, name, context)
        except DanluError as error:
            run.terminal.info(f"warning: context {name}: {error.message}")
            if error.hint:
                run.terminal.info(f"hint: {error.hint}")


def _list_other_machine(run: Session, name: str, context: Context) -> list[dict[str, Any]]:
    """Return the environments of a context's machine, to which danlu is copied if necessary."""
    from danlu.remote.connection import connect_host

    host = connect_host(context, run.paths, run.terminal.info)
    return [*list_remote_environments(name, host, run.paths.cache)]


def _print_environments(environments: Sequence[ListedEnvironment], run: Session) -> None:
    now = datetime.now(UTC)
    head, rows = list(_HEAD), [_describe_row(item, now) for item in environments]
    if not any(item.assigned_gpus for item in environments):
        del head[_GPU_COLUMN]
        rows = [[*row[:_GPU_COLUMN], *row[_GPU_COLUMN + 1 :]] for row in rows]
    print_table(head, rows, run.terminal)
    for item in environments:
        if item.phase == "Damaged":
            run.terminal.info(f"warning: {item.reason}")
            run.terminal.info(f"hint: {item.hint}")
        elif item.phase == "Failed" or ":" in item.reason:
            run.terminal.info(f"{item.name}: {item.reason}")


def _describe_row(environment: ListedEnvironment, now: datetime) -> list[str | TableCell]:
    since = environment.ended or environment.started
    services = environment.services
    ports = ", ".join(f"{port.address}:{port.host_port}" for port in environment.ports)
    return [
        environment.name,
        environment.context,
        TableCell(environment.state, _STYLES.get(environment.phase, "")),
        format_age(seconds_since(since, now)) if since else "-",
        f"{sum(service.running for service in services)}/{len(services)}" if services else "-",
        ports or "-",
        ",".join(map(str, environment.assigned_gpus)) or "-",
        environment.project or "-",
    ]
