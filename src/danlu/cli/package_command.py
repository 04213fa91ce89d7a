"""What ``danlu add`` and ``danlu remove`` share."""

from __future__ import annotations

from collections.abc import Sequence

from danlu.cli.session import current_session
from danlu.commands.packages import KINDS, change_packages


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
