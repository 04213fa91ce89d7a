"""``danlu report``."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from danlu.cli.groups import command as declare_command
from danlu.cli.options import file_option, format_option, verbosity_options
from danlu.cli.output import print_json
from danlu.cli.session import Session, current_session
from danlu.diagnosis.bug_report.bundle import write_bundle
from danlu.diagnosis.bug_report.collect import CollectedReport, collect_report
from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.project.project import Project
from danlu.util.config import Configuration
from danlu.util.files import check_parent_directory
from danlu.util.human import format_size, pluralize
from danlu.util.sanitize import strip_control_sequences


@declare_command("report")
@file_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write [default: danlu-report-TIME.tar.gz].",
)
@format_option()
@verbosity_options
def command(file: str | None, output: Path | None, form: str) -> None:
    """Write a bundle for a bug report, without secrets.

    The bundle contains the build file and the files that it names, the lock, the plan, versions,
    the checks of `danlu doctor`, config.toml and the last logs. Passwords, tokens and keys are
    removed. Nothing is sent: check the bundle, then attach it. `danlu reproduce` builds from it.
    """
    run = current_session()
    path = output or Path(time.strftime("danlu-report-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    if os.path.lexists(run.directory / path):
        raise UsageError(f"{path} exists already", hint="choose another name with -o, or remove it")
    check_parent_directory(run.directory / path)
    report = collect_report(_open_project(run, file), settings=_load_settings(run))
    write_bundle(run.directory / path, report.files)
    if form == "json":
        sizes = {name: len(content) for name, content in report.files.items()}
        values = {"path": str(path), "files": sizes, "removed": report.removed}
        print_json({**values, "missing": list(report.header.missing)}, run.terminal)
        return
    _print_content(report, run)
    run.terminal.write_stdout(str(path))


def _open_project(run: Session, file: str | None) -> Project | None:
    """Open the project, None if there is none: the report then describes only the machine."""
    try:
        return run.open_project(file)
    except UsageError:
        if file is not None:
            raise
        return None


def _load_settings(run: Session) -> Settings:
    """Return the settings, or the defaults if the configuration is invalid."""
    try:
        return run.settings
    except UsageError:
        return Settings(run.paths, Configuration())


def _print_content(report: CollectedReport, run: Session) -> None:
    terminal = run.terminal
    if not report.header.file:
        terminal.info("no build file here: the report describes this machine only")
    width = max(map(len, report.files))
    for name, content in report.files.items():
        counts = report.removed.get(name, {})
        removed = ", ".join(f"{count} × {kind}" for kind, count in sorted(counts.items()))
        line = f"{name.ljust(width)}  {format_size(len(content)):>8}"
        line += f"  removed: {removed}" if removed else ""
        terminal.info(f"  {strip_control_sequences(line)}")
    for name in report.header.missing:
        terminal.info(f"  not included: {strip_control_sequences(name)}")
    total = sum(sum(counts.values()) for counts in report.removed.values())
    counted = f"{pluralize(len(report.files), 'file')}, {pluralize(total, 'secret')} removed"
    terminal.info(f"{counted}; check them before sending")
