"""Read what was changed in a container of Docker or Podman as a writable layer of overlayfs."""

from __future__ import annotations

import os
import posixpath
import stat
import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from danlu.commands.environments.file_changes import (
    DEVICE,
    SOCKET,
    UnreproducedChange,
    is_volatile,
)
from danlu.engine.docker.command import DockerCommand
from danlu.engine.docker.settings import container_name, read_settings
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.oci.overlay import WHITEOUT_PREFIX, read_layer_xattrs
from danlu.oci.tar.extract import extract_entries
from danlu.oci.tar.read import TarEntry, TarReader, TypeFlag
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.types import PROJECT_DIRECTORY
from danlu.util.process_activity import kill_program, limit_transfer

_MAX_BYTES = 1 << 40
_CHUNK_SIZE = 1 << 20
#: Type flags of character and block devices.
_DEVICES = (b"3", b"4")
#: Where the user of this machine was added at start.
_ACCOUNT_FILES = ("/etc/passwd", "/etc/group", "/etc/sudoers.d/danlu")


@dataclass(frozen=True)
class ContainerDiff:
    """Paths of a container that differ from its image, without a slash at the start."""

    changed: frozenset[str]
    removed: frozenset[str]


@contextmanager
def open_container_changes(
    environment: EnvironmentDirectory,
) -> Iterator[Callable[[Path, LayerView], tuple[UnreproducedChange, ...]]]:
    """Yield a function that writes the changes of an environment to a new directory.

    It takes the layers of the image, too, and returns what the engine does not export. It may be
    called in another process, once. Raises
    :class:`~danlu.errors.DanluError` if the engine cannot be used.
    """
    command = DockerCommand(environment.read_spec().engine)
    name = container_name(environment)
    settings = read_settings(environment)
    targets = [PROJECT_DIRECTORY, *(item.target for item in settings.mounts)]
    if settings.account is not None:
        targets += _ACCOUNT_FILES
    diff = parse_diff(command.run("diff", name), ours=targets)
    # The whole root is read, because it also works if the container has stopped.
    exporter = subprocess.Popen(
        [command.find_program(), "export", name], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )

    def write_changes(directory: Path, view: LayerView) -> tuple[UnreproducedChange, ...]:
        directory.mkdir()
        with limit_transfer(exporter) as (stream, _):
            entries = _ChangedEntries(TarReader(stream, limit=_MAX_BYTES), diff, view)
            extract_entries(entries, directory)
        return entries.list_problems()

    try:
        yield write_changes
    finally:
        kill_program(exporter)


def parse_diff(text: str, *, ours: Collection[str]) -> ContainerDiff:
    """Parse the output of ``docker diff``, without the paths ``ours`` and parents made for them."""
    found: dict[str, set[str]] = {"A": set(), "C": set(), "D": set()}
    for line in text.splitlines():
        kind, _, path = line.partition(" ")
        if kind in found and path.startswith("/"):
            found[kind].add(posixpath.normpath(path).lstrip("/"))
    points = {posixpath.normpath(path).lstrip("/") for path in ours}
    parents = {parent for point in points for parent in _list_parents(point)}
    added = found["A"] - points
    needed = {parent for path in added - parents for parent in _list_parents(path)}
    kept = {path for path in added if path not in parents or path in needed}
    return ContainerDiff(frozenset(kept | (found["C"] - points)), frozenset(found["D"] - points))


def _list_parents(path: str) -> list[str]:
    words = path.split("/")
    return ["/".join(words[:count]) for count in range(1, len(words))]


class _ChangedEntries:
    """The entries of an exported root that were changed, and whiteouts of what was removed."""

    def __init__(self, reader: TarReader, diff: ContainerDiff, view: LayerView) -> None:
        self._reader = reader
        self._diff = diff
        self._view = view
        self._seen: set[str] = set()
        self._devices: list[str] = []
        #: The file of the image that is the last entry; None for one that was read.
        self._file: str | None = None

    def __iter__(self) -> Iterator[TarEntry]:
        # Podman reports what was replaced as removed.
        wanted = self._diff.changed | self._diff.removed
        for entry in self._reader:
            name = _normalize_name(entry.name)
            if name not in wanted:
                continue
            self._seen.add(name)
            if entry.kind in _DEVICES:
                self._devices.append(name)
                continue
            if entry.kind == TypeFlag.HARD_LINK:
                yield from self._list_link_target(_normalize_name(entry.link))
            self._file = None
            yield entry
        for path in sorted(self._diff.removed):
            directory, _, base = path.encode(errors="surrogateescape").rpartition(b"/")
            marker = b"/".join((directory, WHITEOUT_PREFIX + base)).lstrip(b"/")
            yield TarEntry(marker, TypeFlag.REGULAR, 0o600, 0, 0, 0, 0, b"", {})

    def _list_link_target(self, target: str) -> Iterator[TarEntry]:
        """Yield the file of the image that a new name was given to: Docker lists only the name."""
        for path in (*_list_parents(target), target):
            place = None if path in self._seen else self._view.entry(tuple(path.split("/")))
            if place is None:
                continue
            self._seen.add(path)
            status = os.lstat(place)
            is_directory = stat.S_ISDIR(status.st_mode)
            if is_directory or stat.S_ISREG(status.st_mode):
                self._file = None if is_directory else place
                yield TarEntry(
                    os.fsencode(path),
                    TypeFlag.DIRECTORY if is_directory else TypeFlag.REGULAR,
                    stat.S_IMODE(status.st_mode),
                    status.st_uid,
                    status.st_gid,
                    0 if is_directory else status.st_size,
                    status.st_mtime_ns,
                    b"",
                    read_layer_xattrs(place),
                )

    def list_problems(self) -> tuple[UnreproducedChange, ...]:
        """Return the changes that are not among the entries."""
        lost = [path for path in self._diff.changed - self._seen if not is_volatile(path)]
        return (
            *(UnreproducedChange(f"/{path}", DEVICE) for path in self._devices),
            *(UnreproducedChange(f"/{path}", SOCKET) for path in sorted(lost)),
        )

    def content(self) -> Iterator[bytes]:
        """Yield the content of the last entry in chunks."""
        if self._file is None:
            yield from self._reader.content()
            return
        with open(self._file, "rb") as file:
            while chunk := file.read(_CHUNK_SIZE):
                yield chunk


def _normalize_name(name: bytes) -> str:
    return posixpath.normpath(name.decode(errors="surrogateescape")).lstrip("/")
