"""``danlu jobs``: list, follow, stop and remove training jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec

from danlu.cli.error_rendering import print_error, print_warning
from danlu.cli.groups import group
from danlu.cli.job_output import LogPrefixes, WarningPrinter, format_log_line
from danlu.cli.job_output.foreground import attach, make_job_renderer, print_result
from danlu.cli.job_output.table import REPLICA_TITLES, state_style
from danlu.cli.options import (
    format_option,
    grace_option,
    job_argument,
    on_option,
    progress_option,
    verbosity_options,
)
from danlu.cli.output import TableCell, print_json, print_table
from danlu.cli.session import Session, current_session
from danlu.errors import DanluError, JobFailed, UsageError
from danlu.jobs.backends import (
    JobOutput,
    find_replica,
    find_replicas,
    list_earlier_runs,
    list_run_names,
    list_views,
    parse_scaling,
    select_backend,
    view_to_json,
    wait_for_finish,
)
from danlu.jobs.first_failure import explain_first_failure
from danlu.jobs.local.retention import RetentionPolicy
from danlu.jobs.prune import configured_policy, prune_jobs
from danlu.jobs.report import (
    ProgressBarFilter,
    describe_exit,
    describe_kills,
    format_on_option,
    format_shell_line,
    job_seconds,
)
from danlu.jobs.types import JobBackend, JobView, LogLine
from danlu.submission.job_view_model import (
    JOB_COLUMNS,
    format_metrics,
    job_row,
    list_job_gpus,
    replica_row,
)
from danlu.util.human import format_age, format_duration, format_size, parse_duration, pluralize
from danlu.util.sanitize import strip_control_sequences

_ATTACH_TAIL = 10

command = group(
    "jobs",
    help="""List, follow, stop and remove training jobs.

    Replicas of a job are named by type and index: worker-0.""",
)


def _open_backend(run: Session) -> JobBackend:
    return select_backend(run.on, run.settings)


# -- inspect


@command.subcommand("ls", section="Inspect")
@click.option(
    "-a", "--all", "every", is_flag=True, help="Also list earlier runs of a name (NAME@1)."
)
@format_option()
@on_option
@verbosity_options
def ls(every: bool, form: str) -> None:
    """List jobs.

    Lists the jobs of this machine, or of a namespace with --on. REPLICAS shows how many replicas
    are done, of all. With -q only names are printed.
    """
    run = current_session()
    warn = partial(print_warning, terminal=run.terminal)
    views, hidden = anyio.run(_list_runs, _open_backend(run), every, warn)
    if form == "json":
        print_json([view_to_json(view) for view in views], run.terminal)
    elif run.quiet:
        for view in views:
            run.terminal.write_stdout(view.name)
    elif not views:
        run.terminal.info("no jobs; `danlu train` starts one")
    else:
        now = datetime.now(UTC)
        head = [title.upper() for title in JOB_COLUMNS]
        rows = [_style_row(job_row(view, now=now)) for view in views]
        gpus = [list_job_gpus(view) for view in views]
        if any(text != "-" for text in gpus):
            head.append("GPU")
            rows = [[*row, text] for row, text in zip(rows, gpus, strict=True)]
        print_table(head, rows, run.terminal, right=(3,))
        if hidden:
            run.terminal.info(f"{pluralize(hidden, 'earlier run')} not shown; --all lists them")


async def _list_runs(
    backend: JobBackend, every: bool, warn: Callable[[str], object]
) -> tuple[list[JobView], int]:
    """Return the views to list, and the number of earlier runs that are not among them."""
    found, hidden = [], 0
    for view in await list_views(backend, warn):
        earlier = await list_earlier_runs(backend, view.name) if every else []
        found += [view, *earlier]
        hidden += 0 if every else len(await list_run_names(backend, view.name))
    return found, hidden


def _style_row(row: Sequence[str]) -> list[str | TableCell]:
    """Show the state, which is the second cell, in its colour."""
    name, state, *others = row
    return [name, TableCell(state, state_style(state)), *others]


@command.subcommand("show", section="Inspect")
@job_argument()
@click.option(
    "--command",
    "replica",
    default="",
    metavar="REPLICA",
    help="Print a shell command that reruns only this replica.",
)
@format_option()
@on_option
@verbosity_options
def show(name: str, replica: str, form: str) -> None:
    """Show details of a job."""
    run = current_session()
    backend = _open_backend(run)
    view = anyio.run(backend.view, name)
    if replica:
        replica_command = anyio.run(backend.command, view.name, find_replica(replica, view))
        if form == "json":
            print_json(msgspec.to_builtins(replica_command), run.terminal)
        else:
            line = format_shell_line(replica_command, project=view.directory)
            run.terminal.write_stdout(line)
        return
    earlier = anyio.run(list_earlier_runs, backend, name)
    view = anyio.run(partial(explain_first_failure, backend, view, last_line=True))
    if form == "json":
        names = [run_view.name for run_view in earlier]
        print_json(view_to_json(view) | {"earlierRuns": names}, run.terminal)
        return
    for label, value in _describe_job(view):
        label = run.terminal.style_stdout(label.ljust(13), "bold")
        run.terminal.write_stdout(f"{label} {strip_control_sequences(value)}")
    if view.replicas:
        run.terminal.write_stdout("")
        rows = [replica_row(replica) for replica in view.replicas]
        print_table(REPLICA_TITLES, rows, run.terminal, right=(2, 3, 4, 5))
    _print_earlier_runs(run, earlier)


def _describe_job(view: JobView) -> Iterator[tuple[str, str]]:
    yield "job", view.name
    yield "state", view.state
    yield "kind", f"{view.kind} ({view.framework})"
    if view.created is not None:
        yield "created", _format_time(view.created)
    seconds = job_seconds(view)
    if seconds is not None:
        yield "duration", format_duration(seconds)
    if view.directory:
        yield "directory", view.directory
    if view.progress is not None:
        percentage = view.progress.percentage
        prefix = "" if percentage is None else f"{percentage} %  "
        yield "progress", f"{prefix}{format_metrics(view.progress)}"
    for index, condition in enumerate(view.status.conditions):
        transition = condition.last_transition_time
        stamp = f"{transition:%H:%M:%S} " if transition else ""
        text = f"{stamp}{condition.type}={condition.status} {condition.reason}: {condition.message}"
        yield "" if index else "conditions", text.rstrip(": ")
    for text in view.warnings:
        yield "warning", text
    first = view.status.first_failure
    if first is not None:
        exit_reason = describe_exit(first.exit_code, first.reason, first.message)
        yield "first failure", f"{first.replica} ({exit_reason})"


def _print_earlier_runs(run: Session, views: Sequence[JobView]) -> None:
    """Print the earlier runs of the name; each can be shown and removed by its own name."""
    if not views:
        return
    rows = []
    for view in views:
        seconds = job_seconds(view)
        created = _format_time(view.created) if view.created else "-"
        duration = "-" if seconds is None else format_duration(seconds)
        rows.append(_style_row((view.name, view.state, created, duration)))
    run.terminal.write_stdout("")
    print_table(("EARLIER RUN", "STATE", "CREATED", "DURATION"), rows, run.terminal)


def _format_time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


@command.subcommand("logs", section="Inspect")
@job_argument()
@click.argument("replicas", nargs=-1, metavar="[REPLICA]...")
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the job finishes.")
@click.option(
    "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each replica."
)
@click.option("--timestamps", is_flag=True, help="Prefix each line with its time.")
@format_option()
@on_option
@verbosity_options
def logs(
    name: str,
    replicas: tuple[str, ...],
    follow: bool,
    tail: int | None,
    timestamps: bool,
    form: str,
) -> None:
    """Print the logs of a job.

    REPLICA may also be a type, such as worker. Lines are prefixed with the replica's name and
    control sequences are stripped, except if a single replica is piped or redirected: then its raw
    output is written.
    """
    run = current_session()
    backend = _open_backend(run)
    view = anyio.run(backend.view, name)
    selected = find_replicas(replicas, view)
    raw = len(selected) == 1 and not run.terminal.out_is_terminal and not timestamps
    write: Callable[[LogLine], None]
    if form == "json":
        write = partial(_write_json_line, run)
    elif raw:
        write = partial(_write_raw_line, run)
    else:
        write = _make_text_writer(run, view, timestamps=timestamps)

    bars = None if raw or form == "json" else ProgressBarFilter()

    async def copy_lines() -> None:
        async for line in backend.logs(name, replicas=selected, follow=follow, tail=tail):
            for shown in [line] if bars is None else bars.feed(line):
                write(shown)
        for shown in [] if bars is None else bars.flush():
            write(shown)

    async def print_warnings() -> None:
        warnings = WarningPrinter(run.terminal)
        # Whatever fails here makes reading the lines fail too, which reports it.
        with suppress(DanluError):
            async for latest in backend.watch(name):
                warnings.print_new(latest)

    async def follow_lines() -> None:
        # A job that waits (for an image, for a GPU) writes nothing: say why meanwhile.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(print_warnings)
            await copy_lines()
            tasks.cancel_scope.cancel()

    anyio.run(follow_lines if follow else copy_lines)


def _write_raw_line(run: Session, line: LogLine) -> None:
    run.terminal.write_stdout_bytes(line.data + (b"\n" if line.whole else b""))


def _write_json_line(run: Session, line: LogLine) -> None:
    values: dict[str, Any] = {
        "replica": str(line.replica),
        "attempt": line.attempt,
        "number": line.number,
        "time": line.time.isoformat(),
        "text": line.data.decode(errors="replace"),
        "whole": line.whole,
    }
    run.terminal.write_stdout(json.dumps(values, ensure_ascii=False))


def _make_text_writer(
    run: Session, view: JobView, *, timestamps: bool
) -> Callable[[LogLine], None]:
    terminal = run.terminal
    prefixes = LogPrefixes(terminal.style_stdout, unicode=terminal.out_unicode)
    prefixes.register(replica.id for replica in view.replicas)
    return lambda line: terminal.write_stdout(
        format_log_line(line, prefixes, timestamps=timestamps)
    )


# -- follow


@command.subcommand("wait", section="Follow")
@job_argument("names", nargs=-1, required=True)
@on_option
@verbosity_options
def wait(names: tuple[str, ...]) -> int:
    """Wait until jobs finish; exits 1 if one failed."""
    run = current_session()
    backend = _open_backend(run)
    failed = False
    for name in names:
        warnings = WarningPrinter(run.terminal)
        view = anyio.run(wait_for_finish, backend, name, warnings.print_new)
        try:
            print_result(run, backend, view)
        except JobFailed as error:
            failed = True
            print_error(error, run.terminal)
    return 1 if failed else 0


@command.subcommand("attach", section="Follow")
@job_argument()
@click.option(
    "--tail",
    type=click.IntRange(min=0),
    metavar="N",
    default=_ATTACH_TAIL,
    show_default=True,
    help="Earlier lines of each replica to show.",
)
@progress_option
@on_option
@verbosity_options
def attach_command(name: str, tail: int, progress: str) -> int:
    """Follow a job as `danlu train` does; Ctrl-C detaches.

    Exits 1 if the job fails.
    """
    run = current_session()
    backend = _open_backend(run)
    run.progress = progress
    renderer = make_job_renderer(progress, run.terminal)
    try:
        result = anyio.run(partial(attach, backend, name, renderer, tail=tail))
    finally:
        renderer.stop()
    if result.view is None or result.signal:
        stop = f"`danlu jobs stop {name}{format_on_option(run.on)}`"
        run.terminal.info(f"{name} keeps running; {stop} stops it")
        return 128 + result.signal
    print_result(run, backend, result.view, show_logs=False)
    return 0


@command.subcommand("fetch", section="Follow")
@job_argument()
@click.argument("directory", default="", metavar="[DIRECTORY]")
@on_option
@verbosity_options
def fetch(name: str, directory: str) -> None:
    """Copy the model, output and checkpoints of a job to this machine.

    DIRECTORY must not exist; by default it has the job's name. Only for jobs of SageMaker: jobs of
    this machine write to it themselves, and those of a cluster to its volumes.
    """
    run = current_session()
    backend = _open_backend(run)
    if not isinstance(backend, JobOutput):
        raise UsageError(
            "only SageMaker keeps what jobs save",
            hint="jobs of this machine write to it themselves, those of a cluster to its volumes",
        )
    place = Path(directory or name)
    found = anyio.run(backend.fetch, name, run.directory / place)
    for part in found:
        run.terminal.write_stdout(f"{place / part}/")
    if not found:
        run.terminal.info(f"{name} saved nothing")


# -- manage


@command.subcommand("stop", section="Manage")
@job_argument("names", nargs=-1, required=True)
@grace_option()
@on_option
@verbosity_options
def stop(names: tuple[str, ...], grace: float | None) -> None:
    """Stop jobs, keeping their logs."""
    run = current_session()
    backend = _open_backend(run)
    for name in names:
        view = anyio.run(backend.view, name)
        if view.finished:
            run.terminal.info(f"job {name!r} has already finished")
            continue
        anyio.run(partial(backend.stop, name, grace=grace))
        killed = describe_kills(anyio.run(backend.view, name))
        run.terminal.info(f"stopped {name}{f'; {killed}' if killed else ''}")


@command.subcommand("rm", section="Manage")
@job_argument("names", nargs=-1)
@click.option("--force", is_flag=True, help="Stop running jobs first.")
@click.option("--all", "everything", is_flag=True, help="Delete all finished jobs.")
@on_option
@verbosity_options
def rm(names: tuple[str, ...], force: bool, everything: bool) -> None:
    """Delete finished jobs and their logs."""
    run = current_session()
    backend = _open_backend(run)
    if bool(names) == everything:
        raise click.UsageError("name the jobs to delete, or use --all")
    for name in names or tuple(anyio.run(backend.names)):
        finished = anyio.run(backend.view, name).finished
        if not finished and everything and not force:
            continue
        if not finished and force:
            anyio.run(partial(backend.stop, name))
        anyio.run(backend.remove, name)
        run.terminal.info(f"removed {name}")


@command.subcommand("prune", section="Manage")
@click.option("--older-than", default="", metavar="TIME", help="Jobs that ended before: 12h, 7d.")
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="All but the newest N jobs.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@format_option()
@verbosity_options
def prune(older_than: str, keep: int | None, dry_run: bool, form: str) -> None:
    """Remove old finished jobs of this machine.

    Without options, removes jobs older than the setting jobs_max_age (30d), and the oldest ones
    while all together exceed jobs_limit (10GB). Starting a job does the same. Running jobs are
    never removed.
    """
    run = current_session()
    policy = configured_policy(run.settings.config)
    if older_than or keep is not None:
        try:
            age = parse_duration(older_than) if older_than else None
        except ValueError as error:
            raise click.UsageError(f"--older-than: {error}") from error
        policy = RetentionPolicy(max_age=age, keep=keep)
    removed = anyio.run(partial(prune_jobs, run.settings, policy, dry_run=dry_run))
    if form == "json":
        fields = [
            {"name": job.name, "state": job.state, "ended": str(job.ended), "size": job.size}
            for job in removed
        ]
        print_json(fields, run.terminal)
        return
    if removed:
        now = datetime.now(UTC)
        rows = [
            (
                job.name,
                TableCell(job.state, state_style(job.state)),
                format_age((now - job.ended).total_seconds()),
                format_size(job.size),
            )
            for job in removed
            if job.ended is not None
        ]
        print_table(("NAME", "STATE", "ENDED", "SIZE"), rows, run.terminal, right=(3,))
    verb = "would remove" if dry_run else "removed"
    total = format_size(sum(job.size for job in removed))
    run.terminal.info(f"{verb} {len(removed)} finished jobs ({total})")


@command.subcommand("suspend", section="Manage")
@job_argument("names", nargs=-1, required=True)
@on_option
@verbosity_options
def suspend(names: tuple[str, ...]) -> None:
    """Suspend jobs (terminates their replicas)."""
    run = current_session()
    for name in names:
        anyio.run(partial(_open_backend(run).suspend, name, suspended=True))
        run.terminal.info(f"suspended {name}")


@command.subcommand("resume", section="Manage")
@job_argument("names", nargs=-1, required=True)
@on_option
@verbosity_options
def resume(names: tuple[str, ...]) -> None:
    """Resume suspended jobs."""
    run = current_session()
    for name in names:
        anyio.run(partial(_open_backend(run).suspend, name, suspended=False))
        run.terminal.info(f"resumed {name}")


@command.subcommand("scale", section="Manage")
@job_argument()
@click.argument("numbers", nargs=-1, required=True, metavar="TYPE=N...")
@on_option
@verbosity_options
def scale(name: str, numbers: tuple[str, ...]) -> None:
    """Change the number of replicas of a job."""
    run = current_session()
    anyio.run(partial(_open_backend(run).scale, name, replicas=parse_scaling(numbers)))
    run.terminal.info(f"scaled {name}: {', '.join(numbers)}")
