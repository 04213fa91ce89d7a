"""Keep what was changed by hand in an environment: as an image, or as lines of the build file."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from danlu.commands.environments.changes import (
    EnvironmentChanges,
    collect_changes,
    render_build_lines,
)
from danlu.commands.settings import Settings
from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.errors import OutsideError, StoreError, UsageError
from danlu.oci.tar import write_layer
from danlu.sandbox import userns
from danlu.sandbox.finalize_upper import finalize_upper
from danlu.store import Store
from danlu.util.fork import run_in_child
from danlu.util.safe_paths import ProjectTree, write_beneath

#: Where ``--write`` keeps changed files, below the project.
FILES_DIRECTORY = "environment-files"
_MAX_FILE_BYTES = 10 << 20


@dataclass(frozen=True)
class CommitResult:
    """What was changed, the lines that make the same, and the digest of the new image, if any."""

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
    build_file = _find_build_file(spec) if write else None
    copied = FILES_DIRECTORY if write else ""

    def commit() -> tuple[EnvironmentChanges, str]:
        userns.enter(settings.paths)
        project = Path(spec.project) if write else None
        return _read_upper(environment, spec, settings, tag=tag, copy_to=project)

    changes, image = run_in_child(commit)
    lines = tuple(render_build_lines(changes, copied=copied))
    if build_file is not None and lines:
        append_lines(build_file, spec.target.rpartition(":")[2], lines)
    return CommitResult(changes, lines, image)


def _read_upper(
    environment: EnvironmentDirectory,
    spec: EnvironmentSpec,
    settings: Settings,
    *,
    tag: str,
    copy_to: Path | None,
) -> tuple[EnvironmentChanges, str]:
    """Return what was changed, and the digest of the image made of it if ``tag`` is given."""
    with Store.open(settings.paths.store) as store, store.lease(), store.staging() as work:
        image = store.image(spec.image)
        layers = store.layers(image.layers) if image is not None else None
        if image is None or layers is None:
            raise StoreError(
                f"the image of environment {spec.name} is missing from the store",
                hint="run `danlu up` in its project to build it again",
            )
        staged = work / "upper"
        _copy_tree(environment.upper, staged)
        trees = [layer.tree for layer in layers]
        finalize_upper(staged, int(time.time()), below=trees)
        changes = collect_changes(staged, trees)
        if copy_to is not None:
            _copy_files(changes, staged, copy_to)
        if not tag:
            return changes, ""
        made_by = f"danlu commit {spec.name}"
        layer = store.commit_layer(staged, write_layer(staged, None), created_by=made_by)
        config = _extend_config(image.config, layer.diff_id, made_by)
        return changes, store.put_image(config, [*image.layers, layer.diff_id], names=[tag]).digest


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a tree with owners, whiteouts and attributes, sharing blocks where possible."""
    command = ["cp", "-a", "--reflink=auto", str(source), str(target)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise OutsideError(
            "cannot copy the environment's writable layer",
            details=tuple(completed.stderr.splitlines()[:5]),
            hint="stop the environment first with `danlu stop`, so that no file changes meanwhile",
        )


def _extend_config(config: bytes, diff_id: str, made_by: str) -> bytes:
    """Return an image configuration with one more layer (OCI image spec, config.md)."""
    document = json.loads(config)
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    document["created"] = created
    document["rootfs"]["diff_ids"].append(diff_id)
    if "history" in document:
        document["history"].append({"created": created, "created_by": made_by})
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _copy_files(changes: EnvironmentChanges, tree: Path, project: Path) -> None:
    """Copy changed regular files into the project.

    The paths are those of real directories of ``tree``; the files belong to the user.
    """
    for change in changes.files:
        if change.kind == "removed" or not change.is_regular:
            continue
        if change.size > _MAX_FILE_BYTES:
            raise UsageError(
                f"{change.path} is too large to be copied into the project ({change.size} bytes)",
                hint="remove it, move it to the project or to a mount, or use --tag instead",
            )
        source = tree / change.path.lstrip("/")
        mode = 0o755 if os.stat(source).st_mode & 0o111 else 0o644
        # The project is writable inside, so its directories may be links to anywhere.
        path = f"{FILES_DIRECTORY}{change.path}"
        write_beneath(project, path, source.read_bytes(), mode=mode)


def _find_build_file(spec: EnvironmentSpec) -> Path:
    name = spec.target.rpartition(":")[0]
    if not name:
        raise UsageError(
            f"environment {spec.name} was made from an image, not from a build file",
            hint="use --tag to keep the changes as an image",
        )
    return Path(spec.project) / name


def append_lines(build_file: Path, function: str, lines: tuple[str, ...]) -> None:
    """Add statements to the end of a function; Starlark's are parsed as Python's."""
    with ProjectTree(build_file.parent) as tree:
        text = tree.read_text(build_file.name)
    name = function.partition("(")[0]
    try:
        functions = [
            node
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]
    except SyntaxError as error:
        raise UsageError(f"cannot read {build_file.name}: {error.msg}") from error
    if not functions or functions[-1].end_lineno is None:
        raise UsageError(f"{build_file.name} has no function {name} to add lines to")
    last = functions[-1].body[-1]
    indent = " " * functions[-1].body[0].col_offset
    rows = text.splitlines()
    end = last.end_lineno or len(rows)
    rows[end:end] = [f"{indent}{line}" for line in lines]
    write_beneath(build_file.parent, build_file.name, ("\n".join(rows) + "\n").encode())
