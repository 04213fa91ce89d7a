"""What ``danlu add`` and ``danlu remove`` share with ``danlu lock``."""

from __future__ import annotations

from collections.abc import Sequence

from danlu.cli.session import Session, current_session
from danlu.project.packages import KINDS, change_packages
from danlu.project.plan import plan_build


def run_package_command(
    kind: str | None,
    *,
    added: Sequence[str] = (),
    removed: Sequence[str] = (),
    file: str | None,
    progress: str,
) -> None:
    """Add and remove packages, and print what changed."""
    run = current_session()
    project = run.open_project(file)
    report = change_packages(
        project,
        KINDS[kind or "python"],
        added=added,
        removed=removed,
        settings=run.settings,
        progress=run.start_progress(progress, title="locking"),
    )
    run.stop_progress()
    for package in report.unchanged:
        run.terminal.info(f"{package} is there already")
    for line in report.lock.lines:
        run.terminal.info(line)
    written = (*report.files, *((project.lock_path.name,) if report.lock.changed else ()))
    run.terminal.info(f"wrote {', '.join(written)}" if written else "nothing changed")
    if report.lock.changed:
        print_downloads(run, file)


def print_downloads(run: Session, file: str | None) -> None:
    """Print how much the next build of the project downloads, if that is much."""
    for line in plan_build(run.open_project(file), settings=run.settings).downloads:
        run.terminal.info(line)
