"""``danlu lock``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from danlu.cli.options import file_option, format_option, progress_option, verbosity_options
from danlu.cli.session import session

if TYPE_CHECKING:
    from danlu.commands.lock import LockReport

__all__ = ["command"]


@click.command(name="lock", short_help="Pin everything the build file asks for in danlu.lock.")
@file_option
@click.option(
    "--upgrade",
    "upgrade",
    multiple=True,
    is_flag=False,
    flag_value="",
    metavar="[NAME]",
    help="Let NAME, or everything, take newer versions. Repeatable.",
)
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 where the lock is stale.")
@click.option(
    "--export",
    "export",
    metavar="FILE",
    help="Also write the Python packages to FILE, a pylock.toml (PEP 751); - is stdout.",
)
@format_option()
@progress_option
@verbosity_options
def command(
    file: str | None,
    upgrade: tuple[str, ...],
    check: bool,
    export: str | None,
    form: str,
    progress: str,
) -> None:
    """Pin everything the build file asks for in danlu.lock.

    Only what changed in the build file is resolved again; all else keeps its version.
    """
    from danlu.commands.lock import STDOUT, lock

    if check and upgrade:
        raise click.UsageError("--check changes nothing, so it cannot go with --upgrade")
    if check and export is not None:
        raise click.UsageError("--check writes nothing, so it cannot go with --export")
    if export == "-" and form == "json":
        raise click.UsageError("stdout takes --format json or --export -, not both")
    run = session()
    exported = None if export in (None, "-") else run.directory / str(export)
    report = lock(
        run.project(file),
        settings=run.settings,
        progress=run.watch(progress),
        upgrade=tuple(name for name in upgrade if name) or None,
        upgrade_all="" in upgrade,
        check=check,
        export=STDOUT if export == "-" else exported,
    )
    run.stop_progress()
    if form == "json":
        from danlu.cli.output import print_json

        print_json(_fields(report, exported), run.terminal)
        return
    for line in report.lines:
        run.terminal.say(line)
    state = "wrote" if report.changed else "up to date:"
    run.terminal.say(f"{state} {report.path.name}")
    if exported:
        run.terminal.say(f"wrote {exported.name}")
    elif export:
        run.terminal.data(report.exported.rstrip("\n"))


def _fields(report: LockReport, exported: Path | None) -> dict[str, Any]:
    fields = {"changed": report.changed, "changes": report.lines, "path": str(report.path)}
    return {**fields, "exported": str(exported)} if exported else fields
