"""Provide the volumes of a pod as directories and files of this machine.

:func:`resolve_volumes` reads what a pod template declares, without touching the disk.
:func:`create_volumes` then creates the volumes for one attempt at a replica, and
:func:`remove_volumes` removes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from danlu.errors import UsageError
from danlu.jobs.local.pod import ManifestObjects, object_data
from danlu.util.files import mounts_below, remove_tree
from danlu.util.quantity import parse_quantity

_FILE_MODE = 0o644
#: Whether a path is acceptable, by ``type`` (Kubernetes API reference, ``HostPathVolumeSource``).
_HOST_TYPES: dict[str, Callable[[Path], bool]] = {
    "": lambda path: path.exists(),
    "Directory": lambda path: path.is_dir(),
    "DirectoryOrCreate": lambda path: path.is_dir() or not path.exists(),
    "File": lambda path: path.is_file(),
    "FileOrCreate": lambda path: path.is_file() or not path.exists(),
    "Socket": lambda path: path.is_socket(),
    "CharDevice": lambda path: path.is_char_device(),
    "BlockDevice": lambda path: path.is_block_device(),
}


class HostPath(msgspec.Struct, frozen=True):
    """A path of this machine; ``type`` says what must exist there or be created."""

    path: Path
    type: str = ""


class EmptyDir(msgspec.Struct, frozen=True):
    """An empty directory in ``memory`` or on disk; ``size`` limits it, in bytes."""

    memory: bool = False
    size: int | None = None


class VolumeFiles(msgspec.Struct, frozen=True):
    """Files by relative path, with content and mode."""

    files: Mapping[str, tuple[bytes, int]]


VolumeSource = HostPath | EmptyDir | VolumeFiles


# -- what a template declares (pure) --------------------------------------------------------------


def resolve_volumes(
    spec: Mapping[str, Any], objects: ManifestObjects, claims: Mapping[str, Path]
) -> dict[str, VolumeSource]:
    """Return the source of each volume in a pod's ``spec``, by name.

    ``claims`` are the directories of the PersistentVolumeClaims that the job creates. Raises
    :class:`UsageError` for unsupported kinds of volumes, ConfigMaps and Secrets that are not
    among ``objects``, and paths that lead out of a volume.
    """
    volumes = spec.get("volumes") or ()
    return {str(volume["name"]): _volume_source(volume, objects, claims) for volume in volumes}


def _volume_source(
    volume: Mapping[str, Any], objects: ManifestObjects, claims: Mapping[str, Path]
) -> VolumeSource:
    name = volume["name"]
    kinds = [key for key in volume if key != "name" and volume[key] is not None]
    kind = kinds[0] if kinds else "emptyDir"
    spec = volume.get(kind) or {}
    if kind == "hostPath":
        return _host_path(name, spec)
    if kind == "emptyDir":
        size = spec.get("sizeLimit")
        limit = int(parse_quantity(size)) if size else None
        return EmptyDir(spec.get("medium") == "Memory", limit)
    if kind == "projected":
        return _projected_files(name, spec, objects)
    if kind in ("configMap", "secret"):
        return VolumeFiles(_object_files(name, kind, spec, objects, mode=spec.get("defaultMode")))
    hint = "use hostPath, emptyDir, configMap or secret to run the job on this machine"
    if kind == "persistentVolumeClaim":
        claim = spec.get("claimName", "NAME")
        if claim in claims:
            return HostPath(claims[claim], "DirectoryOrCreate")
        hint = f"use a local directory instead: --claim {claim}=DIR"
    raise UsageError(f"volume {name}: {kind} is not supported on this machine", hint=hint)


def _host_path(name: str, spec: Mapping[str, Any]) -> HostPath:
    path, kind = Path(str(spec.get("path") or "")), str(spec.get("type") or "")
    if not path.is_absolute():
        raise UsageError(f"volume {name}: the hostPath must be absolute, not {path}")
    if kind not in _HOST_TYPES:
        hint = f"valid types: {', '.join(filter(None, _HOST_TYPES))}"
        raise UsageError(f"volume {name}: unknown hostPath type {kind}", hint=hint)
    return HostPath(path, kind)


def _projected_files(name: str, spec: Mapping[str, Any], objects: ManifestObjects) -> VolumeFiles:
    files: dict[str, tuple[bytes, int]] = {}
    for source in spec.get("sources") or ():
        kind = next(iter(source), "")
        if kind not in ("configMap", "secret"):
            raise UsageError(
                f"volume {name}: projecting {kind or 'nothing'} is not supported on this machine",
                hint="project configMap or secret",
            )
        mode = spec.get("defaultMode")
        files.update(_object_files(name, kind, source[kind], objects, mode=mode))
    return VolumeFiles(files)


def _object_files(
    volume: str,
    kind: str,
    spec: Mapping[str, Any],
    objects: ManifestObjects,
    *,
    mode: int | None,
) -> dict[str, tuple[bytes, int]]:
    """Return the files of a ConfigMap or Secret: all keys, or only the declared ``items``."""
    default = _FILE_MODE if mode is None else int(mode)
    title = "Secret" if kind == "secret" else "ConfigMap"
    data = object_data(objects, title, spec) or {}
    items = spec.get("items")
    if items is None:
        return {_check_relative_path(volume, key): (value, default) for key, value in data.items()}
    files = {}
    for item in items:
        key = item["key"]
        if key in data:
            item_mode = default if item.get("mode") is None else int(item["mode"])
            files[_check_relative_path(volume, item["path"])] = data[key], item_mode
        elif not spec.get("optional"):
            raise UsageError(f"volume {volume}: {title} has no key {key!r}")
    return files


def _check_relative_path(volume: str, path: str) -> str:
    if path.startswith("/") or ".." in path.split("/") or not path.strip("./"):
        raise UsageError(f"volume {volume}: invalid path {path!r}", hint="use a relative path")
    return path


# -- creating them for one attempt ----------------------------------------------------------------


def create_volumes(
    wanted: Mapping[str, VolumeSource], directory: Path, *, mounting: bool = False
) -> dict[str, Path]:
    """Create the volumes in a new ``directory``, and return the path of each.

    With ``mounting`` (in a mount namespace of our own) Secrets and memory-backed volumes are tmpfs
    mounts. Otherwise everything is on disk, accessible to its owner only. Raises
    :class:`UsageError` if a host path does not match its declared type.
    """
    directory.mkdir(mode=0o700, parents=True)
    return {
        name: _create_volume(name, source, directory / str(number), mounting=mounting)
        for number, (name, source) in enumerate(wanted.items())
    }


def remove_volumes(directory: Path) -> None:
    """Remove what :func:`create_volumes` created; does nothing if it is already gone."""
    if not directory.is_dir():
        return
    # Unmount first, so that files of foreign mounts below ours are not deleted.
    if mounts := mounts_below(directory):
        from danlu.sandbox.mounts import unmount

        for target in sorted(mounts, reverse=True):
            unmount(Path(target))
    remove_tree(directory)


def _create_volume(name: str, source: VolumeSource, path: Path, *, mounting: bool) -> Path:
    if isinstance(source, HostPath):
        return _ensure_host_path(name, source)
    path.mkdir()
    if mounting and not (isinstance(source, EmptyDir) and not source.memory):
        # Commands, which only resolve volumes, start faster without the sandbox.
        from danlu.sandbox.mounts import mount_tmpfs

        mount_tmpfs(path, size=source.size if isinstance(source, EmptyDir) else None)
    if isinstance(source, EmptyDir):
        # Kubernetes lets any user of the pod write to it.
        path.chmod(0o777)
        return path
    path.chmod(0o755)
    _write_files(source.files, path)
    return path


def check_host_path(name: str, source: HostPath) -> None:
    """Raise :class:`UsageError` if the path does not match its declared type."""
    path = source.path
    if not _HOST_TYPES[source.type](path):
        problem = f"{path} does not exist or is not of type {source.type}"
        if not source.type:
            problem = f"{path} does not exist"
        hint = (
            "create it, or set `type: DirectoryOrCreate`; --volume DIR:PATH replaces what is"
            " mounted at PATH"
        )
        raise UsageError(f"volume {name}: {problem}", hint=hint)


def _ensure_host_path(name: str, source: HostPath) -> Path:
    check_host_path(name, source)
    path = source.path
    if source.type == "DirectoryOrCreate":
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    elif source.type == "FileOrCreate":
        path.touch(mode=0o644)
    return path


def _write_files(files: Mapping[str, tuple[bytes, int]], directory: Path) -> None:
    for name, (data, mode) in files.items():
        path = directory / name
        _make_parents(path.relative_to(directory).parents, directory)
        # The file may be a Secret's: nobody else may read it before its own mode is set.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        path.chmod(mode & 0o777)


def _make_parents(parents: Iterable[Path], directory: Path) -> None:
    for parent in reversed(list(parents)):
        (directory / parent).mkdir(exist_ok=True)
        (directory / parent).chmod(0o755)
