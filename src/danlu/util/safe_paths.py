"""Open paths below a directory without ever following a link out of it.

Every component is opened with ``O_NOFOLLOW``, and links are resolved here, one step at a time. So a
link that is swapped while a path is walked, or between two uses of a path, leads to an error and
never outside: the guarantee of ``RESOLVE_BENEATH`` of openat2(2), without requiring a kernel that
has it, and with absolute links allowed as long as they stay inside.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

from danlu.errors import Span, UsageError
from danlu.util.sanitize import escape_unprintable

# The kernel's own limit (path_resolution(7)).
_MAX_LINKS = 40
#: Code that removes trees may recurse once per level; real trees are not a tenth as deep.
MAX_DEPTH = 400
_MAX_OPEN_DIRECTORIES = 64
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: O_NONBLOCK: opening a pipe that has no writer would otherwise block for ever.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

Parts = tuple[bytes, ...]
#: Why a path is rejected: it leads outside, its links form a loop, or it is nested too deeply.
Problem = Literal["out", "ring", "deep"]
#: Opens a directory entry of a descriptor; returns a link's target, or None if there is none.
Enter = Callable[[int, bytes], "int | bytes | None"]


def enter_directory(parent: int, name: bytes) -> int | bytes | None:
    """Open the directory ``name``; return a link's target instead, or None for anything else."""
    try:
        return os.open(name, _DIRECTORY_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        # A link fails with ENOTDIR because of O_DIRECTORY, or with ELOOP because of O_NOFOLLOW
        # (open(2)).
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):
            raise
        return None


class DirectoryResolver:
    """Open directories below ``root`` one component at a time, never following links blindly.

    ``root`` is what ``/`` means in absolute links. The descriptors used last stay open, because
    paths of neighbours usually come one after another; callers may use a descriptor until then, and
    must not close it.
    """

    def __init__(self, root: bytes) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open_directories: dict[Parts, tuple[int, Parts]] = {}

    def close(self) -> None:
        """Close all descriptors."""
        self.forget()
        os.close(self._root)

    def forget(self, *, keep: int = -1) -> None:
        """Close every cached descriptor but ``keep``: their paths may name something else now."""
        kept = {parts: known for parts, known in self._open_directories.items() if known[0] == keep}
        for descriptor, _ in self._open_directories.values():
            if descriptor != keep:
                os.close(descriptor)
        self._open_directories = kept

    def open_directory(self, parts: Parts) -> int | None:
        """Return a descriptor of the directory ``parts``, or None if it does not exist."""
        opened = self._find_or_open(parts, enter_directory)
        return None if opened is None else opened[0]

    def _find_or_open(self, parts: Parts, enter: Enter) -> tuple[int, Parts] | None:
        """Return a cached descriptor and the link-free path of that directory below the root."""
        if not parts:
            return self._root, ()
        opened = self._open_directories.get(parts)
        if opened is None:
            opened = self._walk_components(parts, enter)
            if opened is None:
                return None
            if len(self._open_directories) >= _MAX_OPEN_DIRECTORIES:
                os.close(self._open_directories.pop(next(iter(self._open_directories)))[0])
            self._open_directories[parts] = opened
        return opened

    def _walk_components(self, parts: Parts, enter: Enter) -> tuple[int, Parts] | None:
        """Open one component after another, from the root again after each link or ``..``."""
        pending = list(reversed(parts))
        real: list[bytes] = []
        links = 0
        current = os.dup(self._root)
        try:
            while pending:
                part = pending.pop()
                if part != b"..":
                    # In the descriptor of its parent, so that renaming a directory meanwhile cannot
                    # change what was checked. The kernel itself would follow a link out of the
                    # project.
                    below = enter(current, part)
                    if below is None:
                        os.close(current)
                        return None
                    if isinstance(below, int):
                        os.close(current)
                        current = below
                        real.append(part)
                        if len(real) > MAX_DEPTH:
                            raise self._path_error("deep", parts)
                        continue
                    links += 1
                    if links > _MAX_LINKS:
                        raise self._path_error("ring", parts)
                    again = self._resolve_link(tuple(real), part, below, parts)
                    pending += reversed(again)
                elif not real:
                    raise self._path_error("out", parts)
                else:
                    real.pop()
                    pending += reversed(real)
                real.clear()
                os.close(current)
                current = os.dup(self._root)
        except BaseException:
            os.close(current)
            raise
        return current, tuple(real)

    def _resolve_link(self, parent: Parts, name: bytes, target: bytes, path: Parts) -> Parts:
        """Return the path from the root that the link ``name`` in ``parent`` points to."""
        if not target.startswith(b"/"):
            return (*parent, *_split_components(target))
        resolved = self._resolve_absolute(target)
        if resolved is None:
            raise self._path_error("out", path, b"/".join((*parent, name)), target)
        return resolved

    def _resolve_absolute(self, target: bytes) -> Parts | None:
        """Return what an absolute link means below the root, or None if it leads outside."""
        return _split_components(target)

    def _path_error(
        self, problem: Problem, path: Parts, link: bytes = b"", target: bytes = b""
    ) -> Exception:
        """Return the error for ``path``; ``link`` to ``target`` is the offending link, if known."""
        raise NotImplementedError


def _split_components(path: bytes) -> Parts:
    return tuple(part for part in path.split(b"/") if part not in (b"", b"."))


class ProjectTree(DirectoryResolver):
    """The files of a project; no path or link may lead outside its directory.

    Paths are relative to the project, as text or bytes. An absolute path or an absolute link must
    lie below the project. Everything else raises :class:`UsageError`.
    """

    def __init__(self, project: Path) -> None:
        self._project = Path(os.path.abspath(project))
        self._roots = {os.fsencode(self._project), os.fsencode(os.path.realpath(project))}
        super().__init__(os.fsencode(self._project))

    def __enter__(self) -> ProjectTree:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def project(self) -> Path:
        """The project's directory."""
        return self._project

    def split(self, path: str | Path) -> Parts:
        """Return the components of ``path``, with ``..`` resolved textually."""
        name = os.path.normpath(os.fsencode(path))
        parts = self._resolve_absolute(name) if name.startswith(b"/") else _split_components(name)
        if parts is None or b".." in parts or b"\0" in name:
            shown = escape_unprintable(os.fsencode(path))
            raise UsageError(
                f"{shown} is outside the project {self._project.name}",
                hint="copy it into the project, or put the build file in a directory that"
                " holds both",
            )
        return parts

    def status(self, path: str | Path) -> os.stat_result | None:
        """Return the lstat(2) result for ``path``, or None if it does not exist."""
        parts = self.split(path)
        if not parts:
            return os.fstat(self._root)
        parent = self.open_directory(parts[:-1])
        if parent is None:
            return None
        try:
            return os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def real_path(self, path: str | Path) -> Path | None:
        """Return ``path`` without links, relative to the project, or None if it does not exist."""
        opened = self._open_entry(self.split(path))
        if opened is None:
            return None
        descriptor, parts = opened
        os.close(descriptor)
        return Path(os.fsdecode(b"/".join(parts)) or ".")

    def resolve(self, path: str | Path) -> Path:
        """Return the absolute, link-free path of an existing entry, for use by other programs.

        Raises :class:`UsageError` if it does not exist. Unlike a descriptor, the path can be
        swapped for a link before the program opens it.
        """
        real = self.real_path(path)
        if real is None:
            raise UsageError(f"{path} does not exist in the project")
        return self._project / real

    def open_file(self, path: str | Path) -> int:
        """Return a new descriptor of the regular file ``path``, which may be a link to one.

        Raises :class:`FileNotFoundError` or :class:`IsADirectoryError` naming ``path``.
        """
        opened = self._open_entry(self.split(path))
        if opened is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        descriptor, _ = opened
        # Of what was opened: the path may name something else by now.
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return descriptor
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise UsageError(f"{path} is not a file", hint="a pipe or a device cannot be read here")

    def read_bytes(self, path: str | Path) -> bytes:
        """Return the content of the file ``path``."""
        with os.fdopen(self.open_file(path), "rb") as file:
            return file.read()

    def read_text(self, path: str | Path, encoding: str = "utf-8") -> str:
        """Return the text of the file ``path``."""
        return self.read_bytes(path).decode(encoding)

    def _open_entry(self, parts: Parts) -> tuple[int, Parts] | None:
        """Open the entry at ``parts``, following links, and return its real path as well."""
        requested = parts
        for _ in range(_MAX_LINKS):
            if not parts:
                return os.dup(self._root), ()
            if parts[-1] == b"..":
                return self._walk_components(parts, enter_directory)
            parent = self._find_or_open(parts[:-1], enter_directory)
            if parent is None:
                return None
            name = parts[-1]
            try:
                return os.open(name, _FILE_FLAGS, dir_fd=parent[0]), (*parent[1], name)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno == errno.ENXIO:  # a socket, or a pipe opened for writing
                    raise UsageError(
                        f"{escape_unprintable(b'/'.join(requested))} is not a file"
                    ) from error
                if error.errno != errno.ELOOP:
                    raise
            target = os.readlink(name, dir_fd=parent[0])
            parts = self._resolve_link(parent[1], name, target, requested)
        raise self._path_error("ring", requested)

    def _resolve_absolute(self, target: bytes) -> Parts | None:
        name = os.path.normpath(target)
        for root in self._roots:
            if name == root:
                return ()
            if name.startswith(root.rstrip(b"/") + b"/"):
                return _split_components(name[len(root) :])
        return None

    def _path_error(
        self, problem: Problem, path: Parts, link: bytes = b"", target: bytes = b""
    ) -> Exception:
        name = escape_unprintable(b"/".join(path))
        if problem == "ring":
            return UsageError(f"{name} cannot be resolved: its symbolic links form a loop")
        if problem == "deep":
            return UsageError(f"{name} is nested more than {MAX_DEPTH} directories deep")
        what = f"{name} leads out of the project {self._project.name}"
        if link:
            what += f": {escape_unprintable(link)} is a link to {escape_unprintable(target)}"
        else:
            what += " through a link"
        return UsageError(
            what,
            hint="only files inside the project are read: copy it there, or link to one inside",
        )


def confine_to_project(path: str | Path, project: Path, *, hint: str, span: Span | None) -> None:
    """Raise :class:`UsageError` with ``hint`` and ``span`` if ``path`` is outside ``project``.

    Links are followed, and the path need not exist.
    """
    try:
        with ProjectTree(project) as tree:
            tree.real_path(path)
    except UsageError as error:
        error.hint, error.span = hint, span
        raise


def write_beneath(root: Path, path: str, data: bytes, *, mode: int = 0o644) -> None:
    """Replace the file ``path`` below ``root`` atomically; create its directories.

    See :func:`replace_beneath`.
    """
    with replace_beneath(root, path, mode=mode) as file:
        file.write(data)


@contextmanager
def replace_beneath(root: Path, path: str, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Yield a new file that replaces ``path`` below ``root`` if the block ends without an error.

    No link below ``root`` is followed: a program that can write there must not choose where else
    this process writes. Raises :class:`UsageError` if a component is not a directory.
    """
    *parents, name = split_beneath(path)
    with open_beneath(root, parents, create=True) as directory:
        temporary = b".%s.%s" % (name[:200], os.urandom(6).hex().encode())
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, mode, dir_fd=directory), "wb") as file:
            try:
                yield file
                file.flush()
                # open(2) applied the umask.
                os.fchmod(file.fileno(), mode)
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)
                raise


def split_beneath(path: str) -> Parts:
    """Return the components of a relative path; raise :class:`UsageError` if it leads upwards."""
    parts = _split_components(os.fsencode(path))
    if not parts or b".." in parts or "\0" in path:
        raise UsageError(f"invalid path {escape_unprintable(path)}")
    return parts


@contextmanager
def open_beneath(root: Path, parts: Sequence[bytes], *, create: bool = False) -> Iterator[int]:
    """Yield a descriptor of a directory below ``root``, to which no link leads.

    Missing directories are made with ``create``. Raises :class:`UsageError` if a component is not
    a directory, and :class:`FileNotFoundError` if one is missing.
    """
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=current)
            try:
                below = os.open(part, _DIRECTORY_FLAGS, dir_fd=current)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                shown = escape_unprintable(os.fsdecode(b"/".join(parts)))
                raise UsageError(
                    f"cannot write below {shown}: "
                    f"{escape_unprintable(os.fsdecode(part))} is not a directory"
                ) from error
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)
