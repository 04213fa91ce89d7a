"""``danlu lock``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from danlu.cli.groups import command as declare_command
from danlu.cli.options import (
    file_option,
    format_option,
    on_option,
    progress_option,
    verbosity_options,
)
from danlu.cli.output import print_json
from danlu.cli.package_command import print_downloads
from danlu.cli.session import current_session
from danlu.project.lock import STDOUT, LockOptions, LockReport, explain, lock, merge_files
from danlu.util.files import check_parent_directory


@declare_command("lock")
@file_option
@click.option(
    "--upgrade",
    "upgrade",
    multiple=True,
    is_flag=False,
    flag_value="",
    metavar="[NAME]",
    help="Upgrade NAME, or everything if no name is given. Repeatable.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Don't write anything; exit 1 if the lockfile is out of date.",
)
@click.option(
    "--export",
    "export",
    metavar="FILE",
    help="Also write the Python packages as pylock.toml (PEP 751); - is stdout.",
)
@click.option(
    "--platform",
    metavar="OS/ARCH[,…]",
    default="",
    help="Also lock for these platforms (linux/arm64).",
)
@click.option(
    "--merge",
    "versions",
    nargs=3,
    metavar="BASE OURS THEIRS",
    help="Merge three versions of a lockfile into OURS, as git's merge driver.",
)
@click.option(
    "--why",
    "explained",
    metavar="NAME",
    help="Only show which requirements bring the Python package NAME in.",
)
@format_option()
@progress_option
@on_option
@verbosity_options
def command(
    file: str | None,
    upgrade: tuple[str, ...],
    check: bool,
    export: str | None,
    platform: str,
    versions: tuple[str, str, str] | None,
    explained: str | None,
    form: str,
    progress: str,
) -> None:
    """Resolve dependencies and write danlu.lock.

    Only what changed in the build file is resolved again; everything else keeps its version.
    """
    if check and upgrade:
        raise click.UsageError("--check cannot be combined with --upgrade")
    if check and export is not None:
        raise click.UsageError("--check cannot be combined with --export")
    if export == "-" and form == "json":
        raise click.UsageError("--format json cannot be combined with --export -")
    run = current_session()
    if versions is not None:
        merge_files(*(run.directory / version for version in versions))
        return
    if explained is not None:
        reasons = explain(run.open_project(file), explained, settings=run.settings)
        if form == "json":
            print_json(reasons, run.terminal)
        else:
            run.terminal.write_stdout("\n".join(reasons))
        return
    export_path = None if export in (None, "-") else run.directory / str(export)
    if export_path is not None:
        check_parent_directory(export_path)
    report = lock(
        run.open_project(file),
        settings=run.settings,
        progress=run.start_progress(progress, title="locking"),
        options=LockOptions(
            upgrade=tuple(name for name in upgrade if name),
            upgrade_all="" in upgrade,
            check=check,
            export=STDOUT if export == "-" else export_path,
            platform=platform,
        ),
    )
    run.stop_progress()
    if form == "json":
        print_json(_report_fields(report, export_path), run.terminal)
        return
    for line in report.lines:
        run.terminal.info(line)
    run.terminal.info(f"{'wrote' if report.changed else 'up to date:'} {report.path.name}")
    if report.changed:
        print_downloads(run, file)
    if export_path:
        run.terminal.info(f"wrote {export_path.name}")
    elif export:
        run.terminal.write_stdout(report.exported.rstrip("\n"))


def _report_fields(report: LockReport, export_path: Path | None) -> dict[str, Any]:
    fields = {"changed": report.changed, "changes": report.lines, "path": str(report.path)}
    return {**fields, "exported": str(export_path)} if export_path else fields
