"""Read what was changed in a container of Docker or Podman as a writable layer of overlayfs.

The exported root is compared with the image that danlu built. The engine's own list of changes is
not enough: after a change of settings a container is made of an image with the files of the one
before (:func:`~danlu.engine.docker.settings.changes_image`). What danlu and the engine put there
does not count: mount points, and the account of this machine's user.
"""

from __future__ import annotations

import json
import os
import posixpath
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from danlu.engine.docker.command import DockerCommand
from danlu.engine.docker.settings import (
    HostAccount,
    container_name,
    read_settings,
)
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.layer_changes import (
    ACCOUNT_FILES,
    DEVICE,
    SOCKET,
    UnreproducedChange,
    WriteChanges,
    is_volatile,
)
from danlu.engine.layer_reading import list_parents, read_lower
from danlu.errors import OutsideError
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
#: The only attribute that the engines export.
_CAPABILITY = "security.capability"
#: What the engines put into the root of a container; they do not list it.
_ENGINE_PATHS = frozenset(
    (
        *(".dockerenv", "dev", "proc", "sys", "etc/hosts", "etc/hostname", "etc/mtab"),
        *("etc/resolv.conf", "run/.containerenv", "run/secrets"),
    )
)
#: Lets the user of this machine become root.
_SUDO_FILE = "etc/sudoers.d/danlu"


_IdRange = tuple[int, int, int]


@dataclass(frozen=True)
class _ContainerOrigin:
    """What a container was made of, apart from its image.

    Attributes:
        listed: The paths that the engine lists as changed.
        points: Paths that were made for mounts and for the account.
        account: The user that was added or changed at start.
        uids: Ranges of ids in the container, their place in what is exported, and their length.
        gids: The same for groups.
    """

    listed: frozenset[str]
    points: frozenset[str]
    account: HostAccount | None
    uids: tuple[_IdRange, ...]
    gids: tuple[_IdRange, ...]


@contextmanager
def open_container_changes(
    command: DockerCommand, environment: EnvironmentDirectory
) -> Iterator[WriteChanges]:
    """Yield a function that writes the changes of an environment to a new directory.

    It takes the layers of the image, too, and returns what the engine does not export. It may be
    called in another process, once. Raises
    :class:`~danlu.errors.DanluError` if the engine cannot be used.
    """
    name = container_name(environment)
    origin = _find_origin(command, environment, name)
    # The whole root is read, because it also works if the container has stopped.
    exporter = subprocess.Popen(
        [command.find_program(), "export", name], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )

    def write_changes(directory: Path, view: LayerView) -> tuple[UnreproducedChange, ...]:
        directory.mkdir()
        with limit_transfer(exporter) as (stream, _):
            entries = _ChangedEntries(TarReader(stream, limit=_MAX_BYTES), origin, view)
            extract_entries(entries, directory)
        return entries.list_problems()

    try:
        yield write_changes
    finally:
        kill_program(exporter)


def list_container_changes(
    command: DockerCommand, environment: EnvironmentDirectory
) -> frozenset[str]:
    """Return the paths that the engine lists as changed, without those that danlu made.

    Raises :class:`~danlu.errors.DanluError` if the engine cannot be used.
    """
    origin = _find_origin(command, environment, container_name(environment))
    points = origin.points | _ENGINE_PATHS
    account = frozenset(ACCOUNT_FILES if origin.account is not None else ())
    return origin.listed.difference(points, account, *map(list_parents, points))


def _find_origin(
    command: DockerCommand, environment: EnvironmentDirectory, name: str
) -> _ContainerOrigin:
    settings = read_settings(environment)
    points = [PROJECT_DIRECTORY, *(item.target for item in settings.mounts)]
    points += settings.earlier_targets
    if settings.account is not None:
        points += (settings.account.home, _SUDO_FILE)
    try:
        listed = parse_diff(command.run("diff", name))
    except OutsideError:
        # Podman's fails if a file took the place of a directory.
        listed = frozenset()
    paths = frozenset(map(_normalize_path, points))
    return _ContainerOrigin(listed, paths, settings.account, *_read_id_ranges(command, name))


def _read_id_ranges(
    command: DockerCommand, name: str
) -> tuple[tuple[_IdRange, ...], tuple[_IdRange, ...]]:
    """Return the ids of a container with a user namespace: Podman exports those outside."""
    if not command.is_podman:
        return (), ()
    template = "{{json .HostConfig.IDMappings}}"
    text = command.run("container", "inspect", "-f", template, name)
    mappings = json.loads(text) or {}
    uids, gids = (
        tuple(_parse_range(row) for row in mappings.get(key) or ()) for key in ("UidMap", "GidMap")
    )
    return uids, gids


def _parse_range(text: str) -> _IdRange:
    inside, outside, size = map(int, text.split(":"))
    return inside, outside, size


def parse_diff(text: str) -> frozenset[str]:
    """Return the paths in the output of ``docker diff``, without a slash at the start."""
    lines = (line.partition(" ") for line in text.splitlines())
    return frozenset(_normalize_path(path) for kind, _, path in lines if kind in ("A", "C", "D"))


class _ChangedEntries:
    """The entries of an exported root that were changed, and whiteouts of what was removed."""

    def __init__(self, reader: TarReader, origin: _ContainerOrigin, view: LayerView) -> None:
        self._reader = reader
        self._origin = origin
        self._view = view
        self._parents = {path for point in origin.points for path in list_parents(point)}
        self._ids = _find_ids(origin.account, view)
        self._seen: set[str] = set()
        self._directories: set[str] = set()
        self._written: set[str] = set()
        self._devices: list[str] = []
        #: The content of the last entry.
        self._content: Iterator[bytes] = iter(())

    def __iter__(self) -> Iterator[TarEntry]:
        for entry in self._reader:
            entry = self._map_ids(entry)
            name = _normalize_path(entry.name.decode(errors="surrogateescape"))
            self._seen.add(name)
            if entry.kind == TypeFlag.DIRECTORY:
                self._directories.add(name)
            if not name or self._is_own(name):
                continue
            self._content = self._reader.content()
            entry = self._remove_account(name, entry)
            if self._is_in_image(name, entry):
                continue
            if entry.kind in _DEVICES:
                self._devices.append(name)
                continue
            if entry.kind == TypeFlag.HARD_LINK:
                yield from self._list_link_target(_normalize_path(os.fsdecode(entry.link)))
            self._written.add(name)
            yield entry
        for path in sorted(self._list_missing(())):
            if self._is_own(path):
                continue
            directory, _, base = path.encode(errors="surrogateescape").rpartition(b"/")
            marker = b"/".join((directory, WHITEOUT_PREFIX + base)).lstrip(b"/")
            self._content = iter(())
            yield TarEntry(marker, TypeFlag.REGULAR, 0o600, 0, 0, 0, 0, b"", {})

    def _map_ids(self, entry: TarEntry) -> TarEntry:
        uid = _map_id(entry.uid, self._origin.uids)
        gid = _map_id(entry.gid, self._origin.gids)
        return entry if (uid, gid) == (entry.uid, entry.gid) else replace(entry, uid=uid, gid=gid)

    def _is_own(self, name: str) -> bool:
        """Return whether danlu or the engine made an entry, and not a program inside."""
        above = (name, *list_parents(name))
        if name in self._origin.points or not _ENGINE_PATHS.isdisjoint(above):
            return True
        # If something else is in such a directory, it is made for that.
        return name in self._parents and self._find_lower(name) is None

    def _find_lower(self, name: str) -> str | None:
        return self._view.entry(tuple(name.split("/")))

    def _remove_account(self, name: str, entry: TarEntry) -> TarEntry:
        """Return an entry as it would be without the user that was added or changed at start."""
        account = self._origin.account
        if account is None:
            return entry
        uid, gid = self._ids
        if uid is not None and entry.uid == account.uid:
            entry = replace(entry, uid=uid)
        if gid is not None and entry.gid == account.gid:
            entry = replace(entry, gid=gid)
        if name not in ACCOUNT_FILES or entry.kind != TypeFlag.REGULAR:
            return entry
        text = b"".join(self._content).decode(errors="surrogateescape")
        data = _remove_account_lines(text, read_lower(self._view, name), account.name)
        encoded = data.encode(errors="surrogateescape")
        self._content = iter((encoded,))
        return replace(entry, size=len(encoded))

    def _is_in_image(self, name: str, entry: TarEntry) -> bool:
        """Return whether the image has the same; directories are compared later."""
        lower = self._find_lower(name)
        if lower is None or entry.kind == TypeFlag.DIRECTORY:
            return False
        status = os.lstat(lower)
        if entry.kind == TypeFlag.HARD_LINK:
            other = self._find_lower(_normalize_path(os.fsdecode(entry.link)))
            is_linked = other is not None and os.path.samestat(status, os.lstat(other))
            return is_linked and _normalize_path(os.fsdecode(entry.link)) not in self._written
        if (entry.uid, entry.gid) != (status.st_uid, status.st_gid):
            return False
        if entry.kind == TypeFlag.SYMLINK:
            return stat.S_ISLNK(status.st_mode) and os.fsencode(os.readlink(lower)) == entry.link
        if entry.mode & 0o7777 != stat.S_IMODE(status.st_mode):
            return False
        if entry.kind == TypeFlag.FIFO:
            return stat.S_ISFIFO(status.st_mode)
        capability = read_layer_xattrs(lower).get(_CAPABILITY)
        return (
            stat.S_ISREG(status.st_mode)
            and entry.size == status.st_size
            and entry.attributes.get(_CAPABILITY) == capability
            and self._has_same_content(lower)
        )

    def _has_same_content(self, lower: str) -> bool:
        """Compare the content with a file; if it differs, it can be read again."""
        size = 0
        for chunk in self._content:
            with open(lower, "rb") as file:
                file.seek(size)
                if file.read(len(chunk)) != chunk:
                    self._content = chain(_read_start(lower, size), (chunk,), self._content)
                    return False
            size += len(chunk)
        return True

    def _list_missing(self, directory: tuple[str, ...]) -> Iterator[str]:
        """Yield what the image has and the container has not, without what is in it."""
        for base in self._view.names(directory):
            parts = (*directory, base)
            name = "/".join(parts)
            if name not in self._seen:
                yield name
            elif name in self._directories:
                yield from self._list_missing(parts)

    def _list_link_target(self, target: str) -> Iterator[TarEntry]:
        """Yield the file of the image that a new name was given to, if it is not an entry."""
        content = self._content
        for path in (*list_parents(target), target):
            place = None if path in self._written else self._find_lower(path)
            if place is None:
                continue
            self._written.add(path)
            status = os.lstat(place)
            is_directory = stat.S_ISDIR(status.st_mode)
            if is_directory or stat.S_ISREG(status.st_mode):
                self._content = iter(()) if is_directory else _read_start(place, status.st_size)
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
        self._content = content

    def list_problems(self) -> tuple[UnreproducedChange, ...]:
        """Return the changes that are not among the entries."""
        # What the engine lists and neither the container nor the image has.
        lost = sorted(
            path
            for path in self._origin.listed - self._seen
            if not (is_volatile(path) or self._is_own(path) or self._find_lower(path))
        )
        return (
            *(UnreproducedChange(f"/{path}", DEVICE) for path in self._devices),
            *(UnreproducedChange(f"/{path}", SOCKET) for path in lost),
        )

    def content(self) -> Iterator[bytes]:
        """Yield the content of the last entry in chunks."""
        yield from self._content


def _map_id(number: int, ranges: tuple[_IdRange, ...]) -> int:
    for inside, outside, size in ranges:
        if outside <= number < outside + size:
            return number - outside + inside
    return number


def _find_ids(account: HostAccount | None, view: LayerView) -> tuple[int | None, int | None]:
    """Return the ids in the image of the user that the account took the place of, if any."""
    lines = read_lower(view, "etc/passwd").splitlines() if account is not None else []
    for line in lines:
        name, _, uid, gid, *_ = (*line.split(":"), "", "", "", "")
        if account is not None and name == account.name and uid.isdigit() and gid.isdigit():
            return int(uid), int(gid)
    return None, None


def _remove_account_lines(text: str, original: str, name: str) -> str:
    """Return an account file with ``name`` as in the image's file, or without it."""
    known = {line.partition(":")[0]: line for line in original.splitlines()}
    kept = []
    for line in text.splitlines():
        fields = line.split(":")
        if fields[0] == name and name not in known:
            continue
        if fields[0] == name and len(fields) == 7:
            # Only its ids were changed.
            fields[2:4] = known[name].split(":")[2:4]
        elif name not in known and len(fields) == 4:
            fields[3] = ",".join(member for member in fields[3].split(",") if member != name)
        kept.append(":".join(fields))
    return "".join(f"{line}\n" for line in kept)


def _read_start(path: str, size: int) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while size and (chunk := file.read(min(size, _CHUNK_SIZE))):
            size -= len(chunk)
            yield chunk


def _normalize_path(path: str) -> str:
    """Return a path without a slash at the start; empty for the root."""
    return posixpath.normpath(f"/{path}").lstrip("/")
