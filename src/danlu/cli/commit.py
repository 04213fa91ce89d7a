"""``danlu commit``."""

from __future__ import annotations

import click

from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, format_option, verbosity_options
from danlu.cli.output import print_json
from danlu.cli.session import Session, current_session
from danlu.commands.environments.commit import CommitResult, commit_environment
from danlu.util.human import format_size, shorten_digest

_SIGNS = {"added": "+", "changed": "~", "removed": "-"}
_MAX_LISTED = 20


@declare_command("commit")
@environment_argument
@click.option("-t", "--tag", default="", metavar="REF", help="Keep the changes as this image.")
@click.option("--write", is_flag=True, help="Add the lines to the build file.")
@format_option()
@verbosity_options
def command(name: str, tag: str, write: bool, form: str) -> None:
    """Show what was changed by hand, as lines for the build file.

    Packages that pip, uv or apt installed become calls of build functions, other files calls of
    io.copy; with --write the files are copied next to the build file.
    """
    run = current_session()
    result = commit_environment(select_environment(run, name), run.settings, tag=tag, write=write)
    if form == "json":
        print_json(_result_to_json(result), run.terminal)
        return
    _describe_changes(result, run)
    for line in result.lines:
        run.terminal.write_stdout(line)
    if write and result.lines:
        run.terminal.info("added to the build file; `danlu build` builds it")
    if result.image:
        run.terminal.info(f"{tag} is {shorten_digest(result.image)}")


def _describe_changes(result: CommitResult, run: Session) -> None:
    changes = result.changes
    if changes.is_empty:
        run.terminal.info("nothing was changed")
        return
    for package in changes.python:
        note = "" if package.requested else " (a dependency)"
        run.terminal.info(f"+ {package.name} {package.version}{note}")
    for system in changes.system:
        run.terminal.info(f"+ {system} (apt)")
    if changes.dependencies:
        run.terminal.info(f"+ dependencies of these: {changes.dependencies}")
    for change in changes.files[:_MAX_LISTED]:
        size = f" ({format_size(change.size)})" if change.kind != "removed" else ""
        run.terminal.info(f"{_SIGNS[change.kind]} {change.path}{size}")
    if len(changes.files) > _MAX_LISTED:
        run.terminal.info(f"… and {len(changes.files) - _MAX_LISTED} more files")


def _result_to_json(result: CommitResult) -> dict[str, object]:
    changes = result.changes
    return {
        "python": [
            {"name": item.name, "version": item.version, "requested": item.requested}
            for item in changes.python
        ],
        "system": list(changes.system),
        "files": [
            {"kind": item.kind, "path": item.path, "size": item.size} for item in changes.files
        ],
        "lines": list(result.lines),
        "image": result.image,
    }
