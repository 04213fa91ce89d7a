"""Read what was changed in a container of Docker or Podman as a writable layer of overlayfs."""

from __future__ import annotations

import posixpath
import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from danlu.engine.docker.command import DockerCommand
from danlu.engine.docker.settings import container_name, read_settings
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.oci.overlay import WHITEOUT_PREFIX
from danlu.oci.tar.extract import extract_entries
from danlu.oci.tar.read import TarEntry, TarReader, TypeFlag
from danlu.sandbox.types import PROJECT_DIRECTORY

_MAX_BYTES = 1 << 40
#: Where the user of this machine was added at start.
_ACCOUNT_FILES = ("/etc/passwd", "/etc/group", "/etc/sudoers.d/danlu")


@dataclass(frozen=True)
class ContainerDiff:
    """Paths of a container that differ from its image, without a slash at the start."""

    changed: frozenset[str]
    removed: frozenset[str]


@contextmanager
def open_container_changes(environment: EnvironmentDirectory) -> Iterator[Callable[[Path], None]]:
    """Yield a function that writes the changes of an environment to a new directory.

    The function may be called in another process, once. Raises
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
    assert exporter.stdout is not None
    stream = exporter.stdout

    def write_changes(directory: Path) -> None:
        directory.mkdir()
        extract_entries(_ChangedEntries(TarReader(stream, limit=_MAX_BYTES), diff), directory)

    try:
        yield write_changes
    finally:
        stream.close()
        exporter.kill()
        exporter.communicate()


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

    def __init__(self, reader: TarReader, diff: ContainerDiff) -> None:
        self._reader = reader
        self._diff = diff

    def __iter__(self) -> Iterator[TarEntry]:
        for entry in self._reader:
            if _normalize_name(entry.name) in self._diff.changed:
                yield entry
        for path in sorted(self._diff.removed):
            directory, _, name = path.encode(errors="surrogateescape").rpartition(b"/")
            whiteout = b"/".join((directory, WHITEOUT_PREFIX + name)).lstrip(b"/")
            yield TarEntry(whiteout, TypeFlag.REGULAR, 0o600, 0, 0, 0, 0, b"", {})

    def content(self) -> Iterator[bytes]:
        """Yield the content of the last entry in chunks."""
        return self._reader.content()


def _normalize_name(name: bytes) -> str:
    return posixpath.normpath(name.decode(errors="surrogateescape")).lstrip("/")
