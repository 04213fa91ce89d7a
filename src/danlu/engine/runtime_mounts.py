"""Turn the mounts of a build file (``runtime.mount``) into mounts of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from danlu.environment.runtime_settings import DATA_SCHEME
from danlu.errors import OutsideError, UsageError
from danlu.sandbox.types import Mount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danlu.environment.runtime_settings import RuntimeMount
    from danlu.util.paths import Paths


def resolve_mounts(
    mounts: Sequence[RuntimeMount], project: Path, paths: Paths, *, allow_included: bool = False
) -> tuple[Mount, ...]:
    """Return the mounts with their sources on this machine; directories for data are created.

    A mount below the target of another one comes later, whatever their order in the build file. A
    target may still start with ``~/``, the home directory of the environment's user
    (:func:`danlu.sandbox.prepare.expand_home`). Raises :class:`UsageError` if a source does not
    exist, and for mounts that an included repository asks for unless they are allowed.
    """
    if not allow_included:
        _refuse_foreign_mounts(mounts)
    return tuple(
        Mount(mount.target, _resolve_source(mount, project.absolute(), paths))
        for mount in sorted(mounts, key=_target_depth)
    )


def _target_depth(mount: RuntimeMount) -> int:
    """Return the number of components of the target; a home directory is like ``/home/NAME``."""
    parts = [part for part in mount.target.split("/") if part not in ("", ".")]
    return len(parts) + (parts[0] == "~")


def _refuse_foreign_mounts(mounts: Sequence[RuntimeMount]) -> None:
    """Raise :class:`UsageError` if an included repository declares a mount."""
    foreign = [mount for mount in mounts if mount.included_from]
    if not foreign:
        return
    count = f"{len(foreign)} mounts" if len(foreign) > 1 else "a mount"
    raise UsageError(
        f"an included repository declares {count} of this machine's files",
        details=tuple(
            f"{mount.included_from}: {mount.source} at {mount.target}" for mount in foreign
        ),
        hint="add --allow-mounts if you trust it, or write the runtime.mount() in your own file",
    )


def _resolve_source(mount: RuntimeMount, project: Path, paths: Paths) -> Path:
    if mount.source.startswith(DATA_SCHEME):
        return _create_data_directory(paths.kept_data / mount.source.removeprefix(DATA_SCHEME))
    try:
        source = project / Path(mount.source).expanduser()
    except RuntimeError as error:  # no home directory is known
        raise UsageError(
            f"cannot mount {mount.source} at {mount.target}: {error}", hint="set HOME"
        ) from error
    try:
        exists = source.exists()
    except OSError as error:
        raise UsageError(
            f"cannot mount {mount.source} at {mount.target}: {source}: {error.strerror}",
            hint="change the runtime.mount() in the build file",
        ) from error
    if not exists:
        raise UsageError(
            f"cannot mount {mount.source} at {mount.target}: {source} does not exist",
            hint="create it, or change the runtime.mount() in the build file",
        )
    return source


def _create_data_directory(directory: Path) -> Path:
    """Create a directory that any user of an environment may write, and nobody else may enter."""
    parent = directory.parent
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not directory.exists():
            directory.mkdir(exist_ok=True)
            directory.chmod(0o777)  # the parent keeps the machine's other users out
    except OSError as error:
        raise OutsideError(f"cannot create {directory}: {error.strerror}") from error
    return directory
