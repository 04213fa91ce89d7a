"""``danlu commit``."""

from __future__ import annotations

from collections.abc import Iterator

import click

from danlu.changes.commit import CommitResult, commit_environment
from danlu.changes.environment_changes import EnvironmentChanges
from danlu.changes.file_changes import LARGE, PRIVATE, ChangedFile
from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, format_option, verbosity_options
from danlu.cli.output import print_json
from danlu.cli.session import current_session
from danlu.errors import DifferenceFound
from danlu.util.human import format_size, shorten_digest
from danlu.util.sanitize import escape_unprintable
from danlu.util.urls import mask_credentials

_SIGNS = {"added": "+", "changed": "~", "removed": "-"}
_MAX_LISTED = 20
#: Of a line with a path, which has at most 4096 bytes.
_MAX_LENGTH = 5000


@declare_command("commit")
@environment_argument
@click.option(
    "-t", "--tag", default="", metavar="REF", help="Save the environment as an image of this name."
)
@click.option("--write", is_flag=True, help="Add the calls to the build file.")
@click.option(
    "--include",
    "included",
    multiple=True,
    metavar="PATH",
    help="Copy a private or large file, or all below a directory.",
)
@format_option()
@verbosity_options
def command(name: str, tag: str, write: bool, included: tuple[str, ...], form: str) -> None:
    """Show manual changes as calls for the build file.

    Packages that pip, uv, conda or apt installed become calls of build functions. If `danlu add`
    adds Python packages to requirements.txt, so does --write. Other changes become one script; with
    --write, new and changed files are copied next to the build file. Exits with 1 if something
    cannot be reproduced, and says what.
    """
    run = current_session()
    environment = select_environment(run, name)
    result = commit_environment(environment, run.settings, tag=tag, write=write, included=included)
    changes = result.changes
    if form == "json":
        print_json(_result_to_json(result), run.terminal)
    else:
        for line in describe_changes(changes):
            run.terminal.info(line)
        for line in result.lines:
            run.terminal.write_stdout(line)
    if write and (result.lines or result.requirements):
        names = " and ".join(result.requirements)
        listed = f"{names} has the Python packages; " if names else ""
        calls = "the build file has these calls; " if result.lines else ""
        run.terminal.info(f"{listed}{calls}`danlu build` builds it")
    elif any(change.has_copy for change in changes.files) and not tag:
        run.terminal.info("`danlu commit --write` copies the files and adds what places them")
    if result.image:
        run.terminal.info(f"{tag} is {shorten_digest(result.image)}")
        for problem in changes.problems:
            if problem.reason.startswith(PRIVATE):
                text = f"warning: {tag} contains {problem.what}, which is {problem.reason}"
                run.terminal.info(escape_unprintable(text, limit=_MAX_LENGTH))
    # An image has everything but sockets.
    if changes.problems and (write or not tag):
        raise _describe_problems(changes)


def _describe_problems(changes: EnvironmentChanges) -> DifferenceFound:
    count = len(changes.problems)
    what = "1 change" if count == 1 else f"{count} changes"
    is_private = any(problem.reason.startswith(PRIVATE) for problem in changes.problems)
    is_large = any(problem.reason == LARGE for problem in changes.problems)
    return DifferenceFound(
        f"the build file cannot reproduce {what}",
        details=tuple(
            escape_unprintable(f"{item.what}: {item.reason}", limit=_MAX_LENGTH)
            for item in changes.problems
        ),
        hint="give a secret to a step, which keeps it out of the image: run(…, secrets=[…]); or"
        " copy the file all the same: --include PATH"
        if is_private
        else "`danlu commit --tag REF` keeps all changes as an image"
        + (", --include PATH copies a large file" if is_large else ""),
    )


def describe_changes(changes: EnvironmentChanges) -> Iterator[str]:
    """Yield a line for each change; programs of the environment chose the names in them."""
    for line in _list_changes(changes):
        yield escape_unprintable(line, limit=_MAX_LENGTH)


def _list_changes(changes: EnvironmentChanges) -> Iterator[str]:
    if changes.is_empty:
        yield "nothing was changed but caches, logs and temporary files"
    for package in changes.python:
        note = "" if package.requested else " (a dependency)"
        if not package.requirement:
            note = f" (from {mask_credentials(package.url)}; its files are copied)"
        yield f"+ {package.name} {package.version}{note}"
    for conda in changes.conda:
        note = "" if conda.requested else ", a dependency"
        yield f"+ {conda.name} {conda.version} (conda{note})"
    system = changes.system
    for name in system.installed:
        yield f"+ {name} (apt)"
    if system.dependencies:
        yield f"+ dependencies of these: {system.dependencies}"
    for name, _, version in system.replaced:
        yield f"~ {name} {version} (apt)"
    for name in system.removed:
        yield f"- {name} (apt)"
    for name, version in system.local:
        yield f"+ {name} {version} (dpkg)"
    for name, selection in system.selections:
        yield f"~ {name} ({selection})"
    yield from changes.accounts.summary
    for change in changes.files[:_MAX_LISTED]:
        yield f"{_SIGNS[change.kind]} {change.path}{_describe_file(change)}"
    if len(changes.files) > _MAX_LISTED:
        yield f"… and {len(changes.files) - _MAX_LISTED} more files"


def _describe_file(change: ChangedFile) -> str:
    if change.kind == "removed" or change.type in ("special", "pipe"):
        return ""
    if change.type in ("link", "hardlink"):
        return f" -> {change.target}" if change.type == "link" else f" = {change.target}"
    mode, uid, gid = change.attributes
    notes = [format_size(change.size)] if change.type == "file" and change.has_content else []
    before = change.before
    if before is None or before.mode != mode:
        notes.append(f"mode {mode:04o}")
    if before is None or before[1:] != (uid, gid):
        notes.append(f"owner {uid}:{gid}")
    notes += [name for name, _ in change.xattrs]
    notes += [f"no {name}" for name in change.lost_xattrs]
    return f" ({', '.join(notes)})" if notes else ""


def _result_to_json(result: CommitResult) -> dict[str, object]:
    changes = result.changes
    return {
        "python": [
            {
                "name": item.name,
                "version": item.version,
                "requested": item.requested,
                "url": mask_credentials(item.url),
            }
            for item in changes.python
        ],
        "conda": [
            {"name": item.name, "version": item.version, "requested": item.requested}
            for item in changes.conda
        ],
        "system": list(changes.system.installed),
        "removed_system": list(changes.system.removed),
        "accounts": list(changes.accounts.summary),
        "files": [
            {"kind": item.kind, "path": item.path, "type": item.type, "size": item.size}
            for item in changes.files
        ],
        "problems": [{"what": item.what, "reason": item.reason} for item in changes.problems],
        "lines": list(result.lines),
        "requirements": list(result.requirements),
        "image": result.image,
    }
