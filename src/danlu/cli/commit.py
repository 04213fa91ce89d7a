"""``danlu commit``."""

from __future__ import annotations

from collections.abc import Iterator

import click

from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, format_option, verbosity_options
from danlu.cli.output import print_json
from danlu.cli.session import current_session
from danlu.commands.environments.changes import ChangedFile, EnvironmentChanges
from danlu.commands.environments.commit import CommitResult, commit_environment
from danlu.util.human import format_size, shorten_digest
from danlu.util.sanitize import escape_unprintable

_SIGNS = {"added": "+", "changed": "~", "removed": "-"}
_MAX_LISTED = 20
#: Of a line with a path, which has at most 4096 bytes.
_MAX_LENGTH = 5000


@declare_command("commit")
@environment_argument
@click.option(
    "-t", "--tag", default="", metavar="REF", help="Save the environment as an image of this name."
)
@click.option("--write", is_flag=True, help="Add the lines to the build file.")
@format_option()
@verbosity_options
def command(name: str, tag: str, write: bool, form: str) -> None:
    """Show manual changes as lines for the build file.

    Packages that pip, uv, conda or apt installed become calls of build functions, other files calls
    of io.copy; with --write the files are copied next to the build file.
    """
    run = current_session()
    result = commit_environment(select_environment(run, name), run.settings, tag=tag, write=write)
    if form == "json":
        print_json(_result_to_json(result), run.terminal)
        return
    for line in describe_changes(result.changes):
        run.terminal.info(line)
    for line in result.lines:
        run.terminal.write_stdout(line)
    if write and result.lines:
        run.terminal.info("the build file has these lines; `danlu build` builds it")
    if result.image:
        run.terminal.info(f"{tag} is {shorten_digest(result.image)}")


def describe_changes(changes: EnvironmentChanges) -> Iterator[str]:
    """Yield a line for each change; programs of the environment chose the names in them."""
    for line in _list_changes(changes):
        yield escape_unprintable(line, limit=_MAX_LENGTH)


def _list_changes(changes: EnvironmentChanges) -> Iterator[str]:
    if changes.is_empty:
        yield "nothing was changed"
    for package in changes.python:
        note = "" if package.requested else " (a dependency)"
        if not package.requirement:
            note = f" (from {package.url}; no line installs it)"
        yield f"+ {package.name} {package.version}{note}"
    for conda in changes.conda:
        note = "" if conda.requested else ", a dependency"
        yield f"+ {conda.name} {conda.version} (conda{note})"
    for system in changes.system:
        yield f"+ {system} (apt)"
    if changes.dependencies:
        yield f"+ dependencies of these: {changes.dependencies}"
    for change in changes.files[:_MAX_LISTED]:
        yield f"{_SIGNS[change.kind]} {change.path}{_describe_file(change)}"
    if len(changes.files) > _MAX_LISTED:
        yield f"… and {len(changes.files) - _MAX_LISTED} more files"


def _describe_file(change: ChangedFile) -> str:
    if not change.has_line:
        reason = "its name is not UTF-8" if change.is_regular else "not a regular file"
        return f" ({reason}; no line makes it)"
    return "" if change.kind == "removed" else f" ({format_size(change.size)})"


def _result_to_json(result: CommitResult) -> dict[str, object]:
    changes = result.changes
    return {
        "python": [
            {
                "name": item.name,
                "version": item.version,
                "requested": item.requested,
                "url": item.url,
            }
            for item in changes.python
        ],
        "conda": [
            {"name": item.name, "version": item.version, "requested": item.requested}
            for item in changes.conda
        ],
        "system": list(changes.system),
        "files": [
            {"kind": item.kind, "path": item.path, "size": item.size} for item in changes.files
        ],
        "lines": list(result.lines),
        "image": result.image,
    }
