"""Keep what was changed by hand in an environment: as an image, or as lines of the build file."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from danlu.changes.apt_origins import find_apt_packages
from danlu.changes.build_lines import (
    list_chosen_packages,
    render_build_lines,
    render_python_line,
)
from danlu.changes.environment_changes import EnvironmentChanges, collect_changes
from danlu.engine.environment_directory import (
    EnvironmentDirectory,
    EnvironmentSpec,
)
from danlu.engine.environment_image import find_environment_image
from danlu.engine.layer_changes import WriteChanges
from danlu.engine.registry import find_engine
from danlu.engine.settings import Settings
from danlu.engine.vscode_servers import MOUNT_TARGET
from danlu.environment.image_layout import HOME
from danlu.errors import UsageError
from danlu.oci.image import extend_config
from danlu.oci.tar import write_layer
from danlu.project.build_file_text import append_lines
from danlu.project.packages import add_to_requirements_file
from danlu.project.project import Project
from danlu.sandbox import userns
from danlu.sandbox.finalize_upper import finalize_upper
from danlu.sandbox.layer_view import LayerView
from danlu.sources.build_context import find_ignored
from danlu.store import Store
from danlu.util.redaction import find_secret_values
from danlu.util.safe_paths import ProjectTree, replace_beneath

#: Where ``--write`` keeps changed files, below the project.
FILES_DIRECTORY = "environment-files"
_CHUNK_SIZE = 1 << 20


@dataclass(frozen=True)
class CommitResult:
    """What was changed, the calls that reproduce it, and the digest of the new image, if any.

    ``requirements`` are the files that were given the Python packages, which no call then installs.
    """

    changes: EnvironmentChanges
    lines: tuple[str, ...]
    image: str = ""
    requirements: tuple[str, ...] = ()


def commit_environment(
    environment: EnvironmentDirectory,
    settings: Settings,
    *,
    tag: str = "",
    write: bool = False,
    included: Sequence[str] = (),
) -> CommitResult:
    """Report what was changed in an environment.

    With ``tag`` the writable layer becomes a layer of a new image of that name. With ``write`` the
    calls are added to the project's build file, or Python packages to a file of requirements if
    `danlu add` would add them there, and changed files are copied to ``environment-files`` next to
    it: of the private ones, those in or below ``included``. Forks, so the process must not have
    other threads. Raises :class:`UsageError` if the environment has no build file to write to,
    :class:`OutsideError` if files change while they are read.
    """
    spec = environment.read_spec()
    engine = find_engine(spec.engine)
    if not engine.features.keeps_files:
        raise UsageError(
            f"cannot commit {environment.name}: the {spec.engine} engine gives no access to the"
            " layer in which changes are",
            hint="make the changes in an environment of another engine, or write them in the build"
            " file",
        )
    build_file = _find_build_file(spec) if write else None

    with engine.load_commands().open_changes(environment) as write_changes:

        def commit() -> CommitResult:
            project = Path(spec.project) if write else None
            return _read_changes(
                write_changes, spec, settings, tag=tag, copy_to=project, included=included
            )

        result = userns.run_inside(settings.paths, commit)
    if build_file is not None and result.lines:
        project = Project.open(spec.target, directory=Path(spec.project), paths=settings.paths)
        result = _list_requirements(result, project)
        append_lines(build_file, spec.target.rpartition(":")[2], result.lines)
    return result


def _list_requirements(result: CommitResult, project: Project) -> CommitResult:
    """Add the Python packages to the project's file of requirements, if it has one."""
    python = result.changes.python
    own = [*render_python_line(python)]
    chosen = [item.requirement for item in list_chosen_packages(python)]
    files = add_to_requirements_file(project, chosen) if own else ()
    if not files:
        return result
    others = [line for line in result.lines if line not in own]
    lines = (*render_python_line(python, only_limits=True), *others)
    return replace(result, lines=lines, requirements=files)


def _read_changes(
    write_changes: WriteChanges,
    spec: EnvironmentSpec,
    settings: Settings,
    *,
    tag: str,
    copy_to: Path | None,
    included: Sequence[str],
) -> CommitResult:
    with Store.open(settings.paths.store) as store, store.lease(), store.staging() as work:
        image, layers = find_environment_image(store, spec)
        staged = work / "upper"
        trees = [layer.tree for layer in layers]
        lost = write_changes(staged, LayerView(trees))
        available = find_apt_packages(staged, LayerView(trees))
        finalize_upper(staged, int(time.time()), below=trees)
        changes = collect_changes(
            staged,
            trees,
            lost=lost,
            mount_points=_list_mount_points(spec),
            included=included,
            secrets=find_secret_values({**os.environ, **spec.environment}),
            available=available,
        )
        copied, ignored = "", tuple[str, ...]()
        if copy_to is not None:
            copied, ignored = copy_files(changes, staged, copy_to)
        lines = tuple(render_build_lines(changes, staged=copied, ignored=ignored))
        if not tag:
            return CommitResult(changes, lines)
        made_by = f"danlu commit {spec.name}"
        layer = store.commit_layer(staged, write_layer(staged, None), created_by=made_by)
        config = extend_config(image.config, layer.diff_id, made_by, created=datetime.now(UTC))
        # Of the same trust as the image that was changed.
        origin = {
            name: image.metadata[name] for name in ("file", "function") if name in image.metadata
        }
        new = store.put_image(config, [*image.layers, layer.diff_id], names=[tag], metadata=origin)
        return CommitResult(changes, lines, new.digest)


def _list_mount_points(spec: EnvironmentSpec) -> list[str]:
    """Return the targets of mounts, with those at home for each home that there may be."""
    targets = [mount.target for mount in spec.mounts]
    targets += [volume.target for volume in spec.volumes]
    homes = ["/root", HOME]
    return [
        *(f"{home}{target[1:]}" for target in targets if target.startswith("~/") for home in homes),
        *(target for target in targets if not target.startswith("~/")),
        *(MOUNT_TARGET, "/dev", "/proc", "/run", "/sys", "/tmp", "/workspace"),
    ]


def copy_files(
    changes: EnvironmentChanges, tree: Path, project: Path
) -> tuple[str, tuple[str, ...]]:
    """Copy new and changed files into the project, to a directory named by their content.

    The paths are those of real directories of ``tree``; the files belong to the user. Returns the
    directory, empty if there are no such files, and what is in it although the project's ignore
    file excludes it.
    """
    copied = [change for change in changes.files if change.has_copy]
    if not copied:
        return "", ()
    digest = hashlib.sha256()
    for change in copied:
        with open(tree / change.path.lstrip("/"), "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{change.path}\0{content}\0".encode())
    directory = f"{FILES_DIRECTORY}/{digest.hexdigest()[:12]}"
    for change in copied:
        found = change.attributes.mode
        # What only its owner could read inside stays so.
        mode = (0o755 if found & 0o111 else 0o644) & (found | 0o600)
        # The project is writable inside, so its directories may be links to anywhere.
        with (
            open(tree / change.path.lstrip("/"), "rb") as source,
            replace_beneath(project, f"{directory}{change.path}", mode=mode) as target,
        ):
            shutil.copyfileobj(source, target, _CHUNK_SIZE)
    with ProjectTree(project) as files:
        ignored = find_ignored(files, [f"{directory}{change.path}" for change in copied])
    return directory, tuple(sorted(path.removeprefix(directory) for path in ignored))


def _find_build_file(spec: EnvironmentSpec) -> Path:
    name = spec.target.rpartition(":")[0]
    if not name:
        raise UsageError(
            f"environment {spec.name} was created from an image, not from a build file",
            hint="use --tag to keep the changes as an image",
        )
    return Path(spec.project) / name
