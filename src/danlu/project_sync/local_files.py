"""This machine's files of a project: what is there, archives of them, and what is fetched."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, BinaryIO

from danlu.errors import OutsideError, UsageError
from danlu.project_sync.records import ReceivedFile
from danlu.project_sync.remote_files import RemoteFile
from danlu.project_sync.types import (
    CONFLICT_SUFFIX,
    FileState,
    is_private_name,
    list_parents,
    stays_inside,
)
from danlu.sources.build_context import find_ignored, list_entries
from danlu.sources.file_digests import FileDigests
from danlu.util.safe_paths import ProjectTree, open_beneath, split_beneath

#: Of project files that danlu writes itself; not part of a build context.
LOCK_FILE = "danlu.lock"
_CHUNK_SIZE = 1 << 20
#: Something that is never exchanged, and equal to nothing else.
_SPECIAL = FileState("file", "special")
#: A file is in the way of a directory or the other way round, a name is too long, or the directory
#: is another file system.
_OBSTACLES = frozenset((errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EXDEV))


class LocalFiles:
    """A project on this machine; no method leaves its directory or follows a link.

    ``digests_file`` keeps digests of files that did not change.
    """

    def __init__(self, project: Path, digests_file: Path) -> None:
        self.project = project
        self._digests = FileDigests(digests_file)

    def list_files(self) -> tuple[dict[str, FileState], tuple[str, ...]]:
        """Return what belongs to the project, and the links in it that lead outside.

        Ignored files are left out, and what is neither file, directory nor link.
        """
        states: dict[str, FileState] = {}
        outside = []
        with ProjectTree(self.project) as tree:
            names = [(entry.path, entry.status) for entry in list_entries(tree, ".")]
            lock = tree.status(LOCK_FILE)
            if lock is not None:
                names.append((LOCK_FILE, lock))
            for path, status in names:
                if any(map(is_private_name, path.split("/"))):
                    continue
                state = self._describe_status(path, status)
                if state is None or state is _SPECIAL:
                    continue
                if state.kind == "link" and not stays_inside(path, state.content):
                    outside.append(path)
                else:
                    states[path] = state
        self._digests.save()
        return states, tuple(outside)

    def describe(self, path: str) -> FileState | None:
        """Return what is at a path; None if it or its directory does not exist."""
        status = self._read_status(path)
        return None if status is None else self._describe_status(path, status)

    def exists(self, path: str) -> bool:
        """Return whether there is something at a path."""
        return self._read_status(path) is not None

    def read_sizes(self, paths: Iterable[str]) -> dict[str, int]:
        """Return the sizes of files; 0 for those that are gone."""
        sizes = {path: self._read_status(path) for path in paths}
        return {path: 0 if status is None else status.st_size for path, status in sizes.items()}

    def _read_status(self, path: str) -> os.stat_result | None:
        *parents, name = split_beneath(path)
        try:
            with open_beneath(self.project, parents) as directory:
                return os.stat(name, dir_fd=directory, follow_symlinks=False)
        except (FileNotFoundError, UsageError):
            return None

    def _describe_status(self, path: str, status: os.stat_result) -> FileState | None:
        mode = status.st_mode & 0o777
        if stat.S_ISDIR(status.st_mode):
            return FileState("directory", mode=mode | 0o700)
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
            return _SPECIAL
        key = os.fsencode(path)
        if digest := stat.S_ISREG(status.st_mode) and self._digests.find(key, status):
            return FileState("file", digest.hex(), mode)
        try:
            *parents, name = split_beneath(path)
            with open_beneath(self.project, parents) as directory:
                if stat.S_ISLNK(status.st_mode):
                    return FileState("link", os.fsdecode(os.readlink(name, dir_fd=directory)))
                with _open_file(name, directory) as file:
                    digest = self._digests.hash_file(key, file.fileno())
        except (FileNotFoundError, UsageError):
            return None
        return FileState("file", digest.hex(), mode)

    def find_excludes(self, paths: Collection[str]) -> set[str]:
        """Return the paths that do not belong to the project."""
        if not paths:
            return set()  # git is asked otherwise
        with ProjectTree(self.project) as tree:
            return find_ignored(tree, paths) - {LOCK_FILE}

    def list_removals(self, paths: Collection[str], outside: Collection[str]) -> list[str]:
        """Return those of ``paths`` that were removed here: not what has come to be ignored.

        What is now behind a link of ``outside`` is not removed either.
        """
        ignored = self.find_excludes(paths)
        return [
            path
            for path in paths
            if path not in ignored
            and not any(parent in outside for parent in (*list_parents(path), path))
            and not self.exists(path)
        ]

    # -- sending ----------------------------------------------------------------------------------

    def write_files(
        self, archive: tarfile.TarFile, states: Mapping[str, FileState]
    ) -> dict[str, FileState]:
        """Add files and links below ``files/``; return what was added, as it was when it was read.

        Those that are gone are left out.
        """
        added = {}
        for path, state in states.items():
            member = tarfile.TarInfo(f"files/{path}")
            if state.kind == "link":
                member.type, member.linkname = tarfile.SYMTYPE, state.content
                archive.addfile(member)
                added[path] = state
                continue
            *parents, name = split_beneath(path)
            with (
                suppress(FileNotFoundError, UsageError),
                open_beneath(self.project, parents) as directory,
                _open_file(name, directory) as file,
            ):
                status = os.fstat(file.fileno())
                member.size, member.mtime = status.st_size, max(int(status.st_mtime), 0)
                member.mode = status.st_mode & 0o777
                source = _HashedFile(file, member.size)
                archive.addfile(member, source)
                added[path] = FileState("file", source.digest.hexdigest(), member.mode)
        return added

    # -- fetching ---------------------------------------------------------------------------------

    def receive(
        self,
        archive: BinaryIO,
        temporary: Mapping[str, str],
        listed: Mapping[str, RemoteFile],
    ) -> list[ReceivedFile]:
        """Unpack files under their ``temporary`` names, but for those that are in the way.

        Everything else in the archive is an error: the sender is not trusted. Missing directories
        get the modes of ``listed`` ones.
        """
        received = []
        waiting = dict(temporary)
        try:
            with tarfile.open(fileobj=archive, mode="r:") as members:
                for member in members:
                    path = member.name.removeprefix("./")
                    if path not in waiting or member.issparse():
                        raise OutsideError(f"unexpected file {member.name!r}")
                    place = waiting.pop(path)
                    with _suppress_obstacles():
                        self._make_parents(path, listed)
                        state = self._unpack_member(members, member, place)
                        received.append(ReceivedFile(path, place, state))
        except (tarfile.TarError, KeyError, ValueError, OverflowError) as error:
            raise OutsideError(f"cannot read the files: {error}") from error
        return received

    def _make_parents(self, path: str, listed: Mapping[str, RemoteFile]) -> None:
        for parent in list_parents(path):
            mode = listed[parent].mode if parent in listed else 0o700
            *above, name = split_beneath(parent)
            with open_beneath(self.project, above) as directory, suppress(FileExistsError):
                os.mkdir(name, mode, dir_fd=directory)

    def _unpack_member(
        self, members: tarfile.TarFile, member: tarfile.TarInfo, temporary: str
    ) -> FileState:
        with open_beneath(self.project, ()) as directory:
            if member.issym():
                os.symlink(os.fsencode(member.linkname), temporary, dir_fd=directory)
                return FileState("link", member.linkname)
            # A hard link is another name of a file in the archive.
            source = members.extractfile(member) if member.isreg() or member.islnk() else None
            if source is None:
                raise OutsideError(f"unexpected file {member.name!r}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            digest = hashlib.sha256()
            mode = member.mode & 0o777
            with open(os.open(temporary, flags, 0o600, dir_fd=directory), "wb") as file:
                while data := source.read(_CHUNK_SIZE):
                    digest.update(data)
                    file.write(data)
                file.flush()
                os.fchmod(file.fileno(), mode)
                with suppress(OverflowError, ValueError):
                    os.utime(file.fileno(), (member.mtime, member.mtime))
            return FileState("file", digest.hexdigest(), mode)

    def place(self, file: ReceivedFile, known: FileState | None) -> str | None:
        """Give a received file its name, or a free one if what is there is not the ``known`` file.

        Returns the name, or None if something is in the way.
        """
        here = self.describe(file.path)
        target = file.path
        if here is not None and (here.kind == "directory" or here != known):
            if file.state.has_content_of(here):
                self.discard(file.temporary)
                return file.path
            target = self._find_free_name(file.path)
        *parents, name = split_beneath(target)
        with (
            _suppress_obstacles(),
            open_beneath(self.project, ()) as top,
            open_beneath(self.project, parents) as directory,
        ):
            os.rename(file.temporary, name, src_dir_fd=top, dst_dir_fd=directory)
            return target
        return None

    def _find_free_name(self, path: str) -> str:
        for number in count(1):
            name = path + CONFLICT_SUFFIX + (f".{number}" if number > 1 else "")
            if not self.exists(name):
                return name
        raise AssertionError

    def discard(self, temporary: str) -> None:
        """Remove a file that did not get its name, if it exists."""
        with suppress(FileNotFoundError), open_beneath(self.project, ()) as directory:
            os.unlink(temporary, dir_fd=directory)


@contextmanager
def _suppress_obstacles() -> Iterator[None]:
    """Suppress errors because of links and files in the way, and names that are too long."""
    try:
        yield
    except UsageError:
        pass
    except OSError as error:
        if error.errno not in _OBSTACLES:
            raise


class _HashedFile:
    """Reads as many bytes as declared, even if the file is truncated meanwhile, and hashes them."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size
        self.digest = hashlib.sha256()

    def read(self, size: int = _CHUNK_SIZE, /) -> bytes:
        """Return the next bytes."""
        size = min(size, self._left)
        data = self._file.read(size)
        data += bytes(size - len(data))
        self._left -= size
        self.digest.update(data)
        return data


def _open_file(name: bytes, directory: int) -> IO[bytes]:
    """Open a regular file. What has replaced it may be a pipe, at which open(2) waits."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise FileNotFoundError(error.errno, "not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a regular file")
    return open(descriptor, "rb")
