"""``danlu reproduce``."""

from __future__ import annotations

from pathlib import Path

import click

from danlu.cli.groups import command as declare_command
from danlu.cli.options import offline_option, progress_option, verbosity_options
from danlu.cli.session import Session, current_session
from danlu.diagnosis.bug_report.reproduce import UnpackedReport, unpack_report
from danlu.project.build import build_project
from danlu.project.build_request import BuildOptions
from danlu.project.project import Project
from danlu.util.sanitize import strip_control_sequences


@declare_command("reproduce")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="New directory to unpack into [default: the bundle's name].",
)
@click.option(
    "--trust", is_flag=True, help="Run the report's build.py here, with this machine's indexes."
)
@click.option("--no-build", is_flag=True, help="Only unpack and compare.")
@offline_option
@progress_option
@verbosity_options
def command(
    bundle: Path,
    directory: Path | None,
    trust: bool,
    no_build: bool,
    offline: bool,
    progress: str,
) -> None:
    """Rebuild the environment of a bug report.

    Unpacks a bundle of `danlu report` into a new directory, shows how this machine differs from the
    reported one, and builds with the reported lock as `danlu build --frozen` does.
    """
    run = current_session()
    place = run.directory / (directory or bundle.name.removesuffix(".gz").removesuffix(".tar"))
    report = unpack_report(bundle, place, trust=trust)
    run.terminal.info(f"unpacked into {place}")
    _print_differences(report, run)
    if no_build:
        return
    target = f"{report.header.file}:{report.header.target}"
    project = Project.open(target, directory=report.project)
    run.project_directory = project.directory
    options = BuildOptions(frozen=True, offline=offline, trusted=trust)
    built = build_project(
        project, settings=run.settings, options=options, progress=run.start_progress(progress)
    )
    run.stop_progress()
    run.terminal.info("the reported environment was built here without an error")
    run.terminal.write_stdout(built.config)


def _print_differences(report: UnpackedReport, run: Session) -> None:
    terminal = run.terminal
    for difference in report.differences:
        reported = strip_control_sequences(difference.reported) or "missing"
        terminal.info(f"  {difference.name}: {reported} there, {difference.here or 'missing'} here")
    if not report.differences:
        terminal.info("  the versions are the same here")
    for name in report.header.missing:
        terminal.info(f"  not in the report: {strip_control_sequences(name)}")
