"""The volumes of a pod as directories and files of this machine.

:func:`sources` reads what a pod template asks for and looks at nothing else; :func:`make` then
makes it for one attempt at a replica, and :func:`remove` takes it away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from danlu.errors import UsageError
from danlu.jobs.local.quantity import quantity
from danlu.jobs.local.variables import Objects, object_data
from danlu.util.files import mounts_below, remove_tree

__all__ = ["Empty", "Files", "HostPath", "Source", "make", "remove", "sources"]

_FILE_MODE = 0o644
#: What stands for anything (Kubernetes, API reference, ``HostPathVolumeSource``), by its ``type``.
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
    """A path of this machine's; ``type`` says what is to be there, or to be made."""

    path: Path
    type: str = ""


class Empty(msgspec.Struct, frozen=True):
    """An empty directory, in ``memory`` or on disk; ``size`` is its limit in bytes."""

    memory: bool = False
    size: int | None = None


class Files(msgspec.Struct, frozen=True):
    """Files by their relative paths: content and mode."""

    files: Mapping[str, tuple[bytes, int]]


Source = HostPath | Empty | Files


# -- what is asked for (pure) ---------------------------------------------------------------------


def sources(spec: Mapping[str, Any], objects: Objects) -> dict[str, Source]:
    """What each volume of a pod's ``spec`` stands for, by its name.

    Raises :class:`UsageError` for a kind this machine has not, for a ConfigMap or a Secret that is
    not in ``objects``, and for a path that leads out of its volume.
    """
    return {str(one["name"]): _source(one, objects) for one in spec.get("volumes") or ()}


def _source(volume: Mapping[str, Any], objects: Objects) -> Source:
    name = volume["name"]
    kinds = [key for key in volume if key != "name" and volume[key] is not None]
    kind = kinds[0] if kinds else "emptyDir"
    given = volume.get(kind) or {}
    if kind == "hostPath":
        return _host_path(name, given)
    if kind == "emptyDir":
        size = given.get("sizeLimit")
        return Empty(given.get("medium") == "Memory", int(quantity(size)) if size else None)
    if kind == "projected":
        return _projected(name, given, objects)
    if kind in ("configMap", "secret"):
        return Files(_files(name, kind, given, objects, mode=given.get("defaultMode")))
    raise UsageError(
        f"the volume {name} is of the kind {kind}, which this machine does not have",
        hint="use hostPath, emptyDir, configMap or secret to run the job here",
    )


def _host_path(name: str, given: Mapping[str, Any]) -> HostPath:
    path, kind = Path(str(given.get("path") or "")), str(given.get("type") or "")
    if not path.is_absolute():
        raise UsageError(f"the hostPath of the volume {name} is not absolute: {path}")
    if kind not in _HOST_TYPES:
        hint = f"there are: {', '.join(filter(None, _HOST_TYPES))}"
        raise UsageError(f"the volume {name} has an unknown type of hostPath: {kind}", hint=hint)
    return HostPath(path, kind)


def _projected(name: str, given: Mapping[str, Any], objects: Objects) -> Files:
    found: dict[str, tuple[bytes, int]] = {}
    for part in given.get("sources") or ():
        kind = next(iter(part), "")
        if kind not in ("configMap", "secret"):
            raise UsageError(
                f"the volume {name} projects {kind or 'nothing'}, which this machine does not have",
                hint="configMap and secret can be projected here",
            )
        found.update(_files(name, kind, part[kind], objects, mode=given.get("defaultMode")))
    return Files(found)


def _files(
    volume: str, kind: str, given: Mapping[str, Any], objects: Objects, *, mode: int | None
) -> dict[str, tuple[bytes, int]]:
    """The files of a ConfigMap or a Secret: all of its keys, or the ``items`` alone."""
    default = _FILE_MODE if mode is None else int(mode)
    title = "Secret" if kind == "secret" else "ConfigMap"
    data = object_data(objects, title, given) or {}
    items = given.get("items")
    if items is None:
        return {_inside(volume, key): (value, default) for key, value in data.items()}
    found = {}
    for item in items:
        key = item["key"]
        if key in data:
            own = default if item.get("mode") is None else int(item["mode"])
            found[_inside(volume, item["path"])] = data[key], own
        elif not given.get("optional"):
            raise UsageError(f"the volume {volume} asks for the key {key!r}, which is not there")
    return found


def _inside(volume: str, path: str) -> str:
    if path.startswith("/") or ".." in path.split("/") or not path.strip("./"):
        raise UsageError(f"{path!r} is no path in the volume {volume}", hint="name one below it")
    return path


# -- made for one attempt -------------------------------------------------------------------------


def make(wanted: Mapping[str, Source], place: Path, *, mounting: bool = False) -> dict[str, Path]:
    """Make the volumes in the directory ``place``, which is new; gives the path of each.

    With ``mounting`` (this process has mounts of its own) what is to be in memory is, and Secrets
    are; else all is on disk, where only its owner may enter. Raises :class:`UsageError` where a
    path of this machine is not what the volume says.
    """
    place.mkdir(mode=0o700, parents=True)
    return {
        name: _made(name, source, place / str(number), mounting=mounting)
        for number, (name, source) in enumerate(wanted.items())
    }


def remove(place: Path) -> None:
    """Take away what :func:`make` made in ``place``; nothing where it is gone already."""
    if not place.is_dir():
        return
    # Mounts of others' making that hang below ours are not to be emptied.
    for target in sorted(mounts_below(place), reverse=True):
        _unmount(target)
    remove_tree(place)


def _made(name: str, source: Source, place: Path, *, mounting: bool) -> Path:
    if isinstance(source, HostPath):
        return _on_host(name, source)
    place.mkdir()
    if mounting and not (isinstance(source, Empty) and not source.memory):
        _mount_memory(place, source)
    if isinstance(source, Empty):
        # Whoever the containers run as (Kubernetes makes it so).
        place.chmod(0o777)
        return place
    place.chmod(0o755)
    _write(source.files, place)
    return place


def _on_host(name: str, source: HostPath) -> Path:
    path, fits = source.path, _HOST_TYPES[source.type]
    if not fits(path):
        kind = source.type or "anything"
        hint = "make it, or ask for `type: DirectoryOrCreate`"
        raise UsageError(f"volume {name}: {path} is not there as {kind}", hint=hint)
    if source.type == "DirectoryOrCreate":
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    elif source.type == "FileOrCreate":
        path.touch(mode=0o644)
    return path


def _write(files: Mapping[str, tuple[bytes, int]], place: Path) -> None:
    for name, (data, mode) in files.items():
        path = place / name
        _make_parents(path.relative_to(place).parents, place)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        path.chmod(mode & 0o777)


def _make_parents(parents: Iterable[Path], place: Path) -> None:
    for parent in reversed(list(parents)):
        (place / parent).mkdir(exist_ok=True)
        (place / parent).chmod(0o755)


def _mount_memory(place: Path, source: Source) -> None:
    from danlu.sandbox.memory import mount_memory

    mount_memory(place, size=source.size if isinstance(source, Empty) else None)


def _unmount(target: str) -> None:
    from danlu.sandbox.memory import unmount

    unmount(Path(target))
