"""Keep what was changed by hand in an environment: as an image, or as lines of the build file."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from danlu.commands.build_file_text import append_lines
from danlu.commands.environments.changes import (
    EnvironmentChanges,
    collect_changes,
    render_build_lines,
)
from danlu.commands.environments.docker_changes import open_container_changes
from danlu.commands.settings import Settings
from danlu.engine.environment_directory import (
    EMBEDDED_ENGINE,
    KUBERNETES_ENGINE,
    EnvironmentDirectory,
    EnvironmentSpec,
)
from danlu.engine.environment_image import find_environment_image
from danlu.errors import OutsideError, UsageError
from danlu.oci.image import extend_config
from danlu.oci.tar import write_layer
from danlu.sandbox import userns
from danlu.sandbox.finalize_upper import finalize_upper
from danlu.store import Store
from danlu.util.disk_full import disk_full_error, ran_out_of_space
from danlu.util.fork import run_in_child
from danlu.util.safe_paths import write_beneath

#: Where ``--write`` keeps changed files, below the project.
FILES_DIRECTORY = "environment-files"
_MAX_FILE_BYTES = 10 << 20


@dataclass(frozen=True)
class CommitResult:
    """What was changed, the lines that reproduce it, and the digest of the new image, if any."""

    changes: EnvironmentChanges
    lines: tuple[str, ...]
    image: str = ""


def commit_environment(
    environment: EnvironmentDirectory, settings: Settings, *, tag: str = "", write: bool = False
) -> CommitResult:
    """Report what was changed in an environment.

    With ``tag`` the writable layer becomes a layer of a new image of that name; with ``write`` the
    lines are added to the project's build file, and changed files are copied to
    ``environment-files`` next to it. Forks, so the process must not have other threads. Raises
    :class:`UsageError` if the environment has no build file to write to, :class:`OutsideError` if
    files change while they are read.
    """
    spec = environment.read_spec()
    if spec.engine == KUBERNETES_ENGINE:
        raise UsageError(
            f"cannot commit {environment.name}: Kubernetes gives no access to the layer in which a"
            " pod's changes are",
            hint="make the changes in an environment of another engine, or write them in the build"
            " file",
        )
    build_file = _find_build_file(spec) if write else None
    copied = FILES_DIRECTORY if write else ""

    with _open_changes(environment, spec) as write_changes:

        def commit() -> tuple[EnvironmentChanges, str]:
            userns.enter(settings.paths)
            project = Path(spec.project) if write else None
            return _read_changes(write_changes, spec, settings, tag=tag, copy_to=project)

        changes, image = run_in_child(commit)
    lines = tuple(render_build_lines(changes, copied=copied))
    if build_file is not None and lines:
        append_lines(build_file, spec.target.rpartition(":")[2], lines)
    return CommitResult(changes, lines, image)


@contextmanager
def _open_changes(
    environment: EnvironmentDirectory, spec: EnvironmentSpec
) -> Iterator[Callable[[Path], None]]:
    """Yield a function that copies the writable layer to a new directory."""
    if spec.engine == EMBEDDED_ENGINE:
        yield partial(_copy_tree, environment.upper)
        return
    with open_container_changes(environment) as write_changes:
        yield write_changes


def _read_changes(
    write_changes: Callable[[Path], None],
    spec: EnvironmentSpec,
    settings: Settings,
    *,
    tag: str,
    copy_to: Path | None,
) -> tuple[EnvironmentChanges, str]:
    """Return what was changed, and the digest of the image made of it if ``tag`` is given."""
    with Store.open(settings.paths.store) as store, store.lease(), store.staging() as work:
        image, layers = find_environment_image(store, spec)
        staged = work / "upper"
        write_changes(staged)
        trees = [layer.tree for layer in layers]
        finalize_upper(staged, int(time.time()), below=trees)
        changes = collect_changes(staged, trees)
        if copy_to is not None:
            copy_files(changes, staged, copy_to)
        if not tag:
            return changes, ""
        made_by = f"danlu commit {spec.name}"
        layer = store.commit_layer(staged, write_layer(staged, None), created_by=made_by)
        config = extend_config(image.config, layer.diff_id, made_by, created=datetime.now(UTC))
        return changes, store.put_image(config, [*image.layers, layer.diff_id], names=[tag]).digest


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a tree with owners, whiteouts and attributes, sharing blocks where possible."""
    command = ["cp", "-a", "--reflink=auto", str(source), str(target)]
    # Names of files need not be UTF-8.
    completed = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
        check=False,
    )
    if completed.returncode:
        details = tuple(completed.stderr.splitlines()[:5])
        if ran_out_of_space(target.parent, details):
            raise disk_full_error("the store, to which the changes are copied", output=details)
        raise OutsideError(
            "cannot copy the environment's writable layer",
            details=details,
            hint="stop the environment first with `danlu stop`, so that no file changes meanwhile",
        )


def copy_files(changes: EnvironmentChanges, tree: Path, project: Path) -> None:
    """Copy changed regular files into the project.

    The paths are those of real directories of ``tree``; the files belong to the user.
    """
    for change in changes.files:
        if change.kind == "removed" or not change.has_line:
            continue
        if change.size > _MAX_FILE_BYTES:
            raise UsageError(
                f"{change.path} is too large to be copied into the project ({change.size} bytes)",
                hint="remove it, move it to the project or to a mount, or use --tag instead",
            )
        source = tree / change.path.lstrip("/")
        found = os.stat(source).st_mode
        # What only its owner could read inside stays so.
        mode = (0o755 if found & 0o111 else 0o644) & (found | 0o600)
        # The project is writable inside, so its directories may be links to anywhere.
        path = f"{FILES_DIRECTORY}{change.path}"
        write_beneath(project, path, source.read_bytes(), mode=mode)


def _find_build_file(spec: EnvironmentSpec) -> Path:
    name = spec.target.rpartition(":")[0]
    if not name:
        raise UsageError(
            f"environment {spec.name} was created from an image, not from a build file",
            hint="use --tag to keep the changes as an image",
        )
    return Path(spec.project) / name
