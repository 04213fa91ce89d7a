"""``danlu lock``."""

from __future__ import annotations

import click

from danlu.cli.options import file_option, format_option, progress_option, verbosity_options
from danlu.cli.session import session

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
@format_option()
@progress_option
@verbosity_options
def command(
    file: str | None, upgrade: tuple[str, ...], check: bool, form: str, progress: str
) -> None:
    """Pin everything the build file asks for in danlu.lock.

    Only what changed in the build file is resolved again; all else keeps its version.
    """
    from danlu.commands.lock import lock

    if check and upgrade:
        raise click.UsageError("--check changes nothing, so it cannot go with --upgrade")
    run = session()
    report = lock(
        run.project(file),
        settings=run.settings,
        progress=run.watch(progress),
        upgrade=tuple(name for name in upgrade if name) or None,
        upgrade_all="" in upgrade,
        check=check,
    )
    run.stop_progress()
    if form == "json":
        from danlu.cli.output import print_json

        fields = {"changed": report.changed, "changes": report.lines, "path": str(report.path)}
        print_json(fields, run.terminal)
        return
    for line in report.lines:
        run.terminal.say(line)
    state = "wrote" if report.changed else "up to date:"
    run.terminal.say(f"{state} {report.path.name}")
