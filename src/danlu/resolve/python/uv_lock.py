"""Take packages from a ``uv.lock``, exactly those that ``uv sync --locked`` would install.

uv itself reads its lock and writes a ``pylock.toml``. It runs on copies of the project's files, so
that it neither changes them nor reads anything else, and it builds and downloads nothing.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from danlu.environment.lock import LockedPackage
from danlu.errors import ResolveError, TemporaryError
from danlu.resolve.python.pylock import list_packages
from danlu.resolve.python.requirements import UvLockRequest
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.requirements import list_uv_lock_directories
from danlu.sources.pypi.uv import find_uv
from danlu.sources.pypi.uv_errors import summarize_reason
from danlu.sources.pypi.uv_project import LOCK_NAME
from danlu.util.process import run
from danlu.util.safe_paths import ProjectTree

#: How long uv may do nothing: it only reads files.
_STUCK_SECONDS = 60.0


async def import_uv_lock(
    wanted: UvLockRequest,
    target: PlatformTarget,
    scratch: Path,
    report: Callable[[str], None],
) -> tuple[LockedPackage, ...]:
    """Return the packages of a ``uv.lock`` that ``target`` needs, sorted by normalised name.

    ``scratch`` is a directory for copies. Raises :class:`ResolveError` if the lock is not up to
    date, or excludes the target's Python.
    """
    project = wanted.project
    copies = scratch / "uv-project"
    _copy_project(wanted, copies)
    directory = copies / os.path.relpath(wanted.lock.parent, project.project)
    lock = directory / LOCK_NAME
    content = lock.read_bytes()
    # uv writes an index with a relative path into the lock with its full address as well.
    moved = content.replace(f"{project.project.as_uri()}/".encode(), f"{copies.as_uri()}/".encode())
    for text in dict.fromkeys((content, moved)):
        lock.write_bytes(text)
        refused = await _find_difference(directory, scratch)
        if not refused:
            break
    else:
        _refuse_lock(wanted, refused, report)
    lock.write_bytes(content)
    output = directory / "pylock.toml"
    options = ["--frozen", "--no-emit-project", "--no-default-groups", "--offline", "--no-build"]
    options += ["--format", "pylock.toml", "--output-file", str(output)]
    if project.name:
        options += ["--package", project.name]
    for name in wanted.extras:
        options += ["--extra", name]
    for name in wanted.groups:
        options += ["--group", name]
    code, messages = await _run_uv(("export", *options), directory, _own_environment(scratch))
    if code:
        raise ResolveError(f"cannot read {_lock_path(wanted)}", details=summarize_reason(messages))
    table = tomllib.loads(output.read_text(encoding="utf-8"))
    return list_packages(table, wanted.lock, target, project.project)


def _lock_path(wanted: UvLockRequest) -> str:
    return os.path.relpath(wanted.lock, wanted.project.project)


def _copy_project(wanted: UvLockRequest, copies: Path) -> None:
    """Copy the files that decide whether the lock is up to date, with their places kept."""
    project = wanted.project
    directories = [path for path, _ in list_uv_lock_directories(project)]
    files = [wanted.lock, project.path, project.workspace.path]
    files += [member.path for member in project.members.values()]
    files += [directory / "pyproject.toml" for directory in directories]
    files.append(wanted.lock.parent / "uv.toml")
    with ProjectTree(project.project) as tree:
        for file in dict.fromkeys(files):
            if not file.is_file() or not file.is_relative_to(project.project):
                continue  # a directory outside the project is refused when it is installed
            copy = copies / file.relative_to(project.project)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(tree.read_bytes(file))


async def _find_difference(directory: Path, scratch: Path) -> str:
    """Return what uv says if the lock does not answer the project's requirements, else nothing.

    It may have been made with the indexes of this machine's configuration or without them.
    """
    command = ("lock", "--check", "--offline", "--no-build", "--no-cache")
    refused = ""
    for python in (("--python", sys.executable), ()):
        for environment in (_own_environment(scratch), _machine_environment()):
            code, messages = await _run_uv((*command, *python), directory, environment)
            if not code:
                return ""
            refused = refused or messages
        if "incompatible with the project's Python requirement" not in messages:
            break
        refused = ""  # uv may know another Python
    return refused or messages


def _refuse_lock(wanted: UvLockRequest, refused: str, report: Callable[[str], None]) -> None:
    """Raise :class:`ResolveError`, unless uv could not check the lock."""
    if any(sign in refused for sign in _UNCHECKED):
        report(f"cannot check whether {_lock_path(wanted)} is up to date; its versions are used")
        return
    raise ResolveError(
        f"{_lock_path(wanted)} is not up to date with {wanted.project.place}",
        hint="run `uv lock`",
    )


#: uv's phrases if only building a package shows what it requires, or if it has no Python to check
#: with. What it would install is in the lock all the same.
_UNCHECKED = (
    "Failed to generate package metadata",
    "Failed to build",
    "Building source distributions",
    "No interpreter found",
)


def _own_environment(scratch: Path) -> dict[str, str]:
    """Return an environment in which uv has the project's configuration only."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    return kept | {"XDG_CONFIG_HOME": str(scratch / "no-config"), "UV_NO_SYSTEM_CONFIG": "1"}


def _machine_environment() -> dict[str, str]:
    left_out = ("UV_PROJECT", "UV_WORKING_DIR", "UV_FROZEN", "UV_LOCKED", "UV_NO_SOURCES")
    return {name: text for name, text in os.environ.items() if not name.startswith(left_out)}


async def _run_uv(
    words: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> tuple[int, str]:
    fixed = {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "UV_NO_WRAP": "1"}
    try:
        done = await run(
            (str(find_uv()), *words, "--quiet"),
            env={**environment, **fixed, "NO_COLOR": "1"},
            cwd=directory,
            is_stuck=lambda idle: idle > _STUCK_SECONDS,
        )
    except TimeoutError as error:
        raise TemporaryError(f"uv did nothing for {_STUCK_SECONDS:.0f} seconds") from error
    return done.code, done.stderr.decode(errors="replace")
