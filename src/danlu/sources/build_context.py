"""The build context: which project files belong to it, their digests, and copies of them.

Nothing outside the project is ever read, wherever symlinks point (``util.safe_paths``). As in
Docker's build contexts, symlinks are copied as symlinks and FIFOs as FIFOs; sockets and devices are
skipped.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from danlu.errors import OutsideError, UsageError
from danlu.sources.file_digests import FileDigests, hash_descriptor
from danlu.sources.ignore_rules import IgnoreRules, load_ignore_rules
from danlu.util.safe_paths import MAX_DEPTH, ProjectTree

#: Never part of a context, regardless of the ignore file.
_ALWAYS_EXCLUDED = frozenset({".git"})

#: Written by danlu into the project root: it must not change what is built.
_LOCK_FILE = "danlu.lock"

_CHUNK_SIZE = 1 << 20
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ContextEntry(msgspec.Struct, frozen=True, gc=False):
    """A context entry: its ``path`` in the project, ``target`` relative to the copied source,
    and status.

    ``is_named`` is true if the source is this very file.
    """

    path: str
    target: str
    status: os.stat_result
    is_named: bool = False

    @property
    def is_special(self) -> bool:
        """Whether this is a socket or a device, which is not copied."""
        mode = self.status.st_mode
        return stat.S_ISSOCK(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def list_entries(tree: ProjectTree, source: str) -> list[ContextEntry]:
    """List what ``source`` (a file, directory or pattern in the project) refers to, sorted.

    ``list_entries(tree, ".")`` is the list of what belongs to a project, wherever it is copied to.
    What the project's ignore file excludes does not (:func:`load_ignore_rules`), nor ``.git`` and
    ``danlu.lock``; a directory whose content is excluded does. A file or symlink that ``source``
    names is included even if an ignore file excludes it. Raises :class:`UsageError` if nothing
    matches or it is outside the project.
    """
    relative = os.fsdecode(b"/".join(tree.split(source))) or "."
    status = tree.status(relative)
    if status is not None:
        return _list_named_path(tree, relative, status)
    entries = list(_list_matches(tree, relative)) if _is_pattern(relative) else []
    if not entries:
        raise UsageError(f"{source} not found in the project")
    return sorted(entries, key=lambda entry: os.fsencode(entry.target))


def find_ignored(tree: ProjectTree, paths: Iterable[str]) -> set[str]:
    """Return those of ``paths``, files that need not exist, that do not belong to the project.

    The counterpart of ``list_entries(tree, ".")`` for files that another machine has.
    """
    paths = set(paths)
    always = {
        path
        for path in paths
        if path == _LOCK_FILE or not _ALWAYS_EXCLUDED.isdisjoint(path.split("/"))
    }
    return always | load_ignore_rules(tree).filter_paths(paths - always)


def _is_pattern(source: str) -> bool:
    return any(mark in source for mark in "*?[")


def _list_named_path(
    tree: ProjectTree, relative: str, status: os.stat_result
) -> list[ContextEntry]:
    if stat.S_ISDIR(status.st_mode):
        prefix = "" if relative == "." else f"{relative}/"
        return list(_list_directory(tree, prefix, len(prefix), load_ignore_rules(tree)))
    entry = ContextEntry(relative, os.path.basename(relative), status, is_named=True)
    if entry.is_special:
        raise UsageError(
            f"{relative} is a socket or a device, which an image cannot contain",
            hint="use a file, a symlink or a directory",
        )
    return [entry]


def _list_matches(tree: ProjectTree, pattern: str) -> Iterator[ContextEntry]:
    rules = load_ignore_rules(tree)
    try:
        matches = sorted(tree.project.glob(pattern))
    except (ValueError, NotImplementedError) as error:
        raise UsageError(f"{pattern} is not a valid pattern: {error}") from error
    for match in matches:
        relative = str(match.relative_to(tree.project))
        is_dir = match.is_dir()
        is_excluded = rules.excludes(relative, is_dir=is_dir)
        if is_excluded and not (is_dir and rules.may_include_below(relative)):
            continue
        # A pattern also follows symlinked directories; `status` rejects those that lead outside.
        status = tree.status(relative)
        if status is None:
            continue
        below = list[ContextEntry]()
        if stat.S_ISDIR(status.st_mode):
            below += _list_directory(tree, f"{relative}/", len(relative) - len(match.name), rules)
        if below or not is_excluded:
            yield ContextEntry(relative, match.name, status)
            yield from below


def _list_directory(
    tree: ProjectTree, prefix: str, cut: int, rules: IgnoreRules
) -> Iterator[ContextEntry]:
    """Yield the entries below ``prefix``; ``cut`` characters of their paths are not in
    ``target``.
    """
    parts = prefix.split("/")
    for above in ("/".join(parts[:count]) for count in range(1, len(parts))):
        if rules.excludes(above, is_dir=True) and not rules.may_include_below(above):
            return
        if tree.status(f"{above}/.git") is not None:
            rules = rules.enter_directory(above, [".git"])
    directory = tree.open_directory(tree.split(prefix or "."))
    if directory is None:
        return
    own = os.dup(directory)  # the tree may close its descriptor while this one is in use
    try:
        yield from _walk_directory(own, prefix, cut, rules)
    finally:
        os.close(own)


def _walk_directory(
    directory: int, prefix: str, cut: int, rules: IgnoreRules
) -> Iterator[ContextEntry]:
    if prefix.count("/") > MAX_DEPTH:
        raise UsageError(f"{prefix[:60]}… is more than {MAX_DEPTH} directories deep")
    with os.scandir(directory) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    rules = rules.enter_directory(prefix[:-1], [entry.name for entry in entries])
    for entry in entries:
        name = entry.name
        path = prefix + name
        is_dir = entry.is_dir(follow_symlinks=False)
        if name in _ALWAYS_EXCLUDED or path == _LOCK_FILE:
            continue
        is_excluded = rules.excludes(path, is_dir=is_dir)
        if is_excluded and not (is_dir and rules.may_include_below(path)):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # removed since the directory was read
            continue
        own = ContextEntry(path, path[cut:], status)
        if not is_excluded:
            yield own
        if is_dir:
            below = os.open(name, _DIRECTORY_FLAGS, dir_fd=directory)
            try:
                for member in _walk_directory(below, f"{path}/", cut, rules):
                    if is_excluded:  # but this is not, so that the directory is needed
                        yield own
                        is_excluded = False
                    yield member
            finally:
                os.close(below)


class _ContextDigest:
    """SHA-256 over names, kinds, executable bits, symlink targets and content; not times."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, entry: ContextEntry, content: bytes) -> None:
        kind = _kind_of(entry.status.st_mode)
        # File names are bytes; Python represents those that are not UTF-8 with surrogates.
        self._hash.update(b"%b\0%b\0" % (kind, os.fsencode(entry.target)) + content)

    def hexdigest(self) -> str:
        return "sha256:" + self._hash.hexdigest()


def _kind_of(mode: int) -> bytes:
    if stat.S_ISLNK(mode):
        return b"link"
    if stat.S_ISDIR(mode):
        return b"dir"
    if stat.S_ISFIFO(mode):
        return b"fifo"
    return b"filex" if mode & 0o100 else b"file-"


def digest_entries(
    tree: ProjectTree, entries: Sequence[ContextEntry], digests: FileDigests | None = None
) -> str:
    """Return ``sha256:…`` of entries; files that ``digests`` knows are not read again."""
    digest = _ContextDigest()
    for entry in entries:
        if not entry.is_special:
            digest.add(entry, _digest_content(tree, entry, digests))
    return digest.hexdigest()


def _digest_content(tree: ProjectTree, entry: ContextEntry, digests: FileDigests | None) -> bytes:
    mode = entry.status.st_mode
    if stat.S_ISLNK(mode):
        return _link_target(tree, entry) + b"\0"
    if not stat.S_ISREG(mode):
        return b""
    path = os.fsencode(entry.path)
    known = digests.find(path, entry.status) if digests is not None else None
    if known is not None:
        return known
    descriptor = _open_entry_file(tree, entry)
    try:
        if digests is None:
            return hash_descriptor(descriptor)
        return digests.hash_file(path, descriptor)
    finally:
        os.close(descriptor)


def _parent_of(tree: ProjectTree, entry: ContextEntry) -> tuple[int, bytes]:
    parts = tree.split(entry.path)
    parent = tree.open_directory(parts[:-1])
    if parent is None:
        raise _changed_error(entry)
    return parent, parts[-1]


def _link_target(tree: ProjectTree, entry: ContextEntry) -> bytes:
    parent, name = _parent_of(tree, entry)
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        raise _changed_error(entry) from error


def _open_entry_file(tree: ProjectTree, entry: ContextEntry) -> int:
    """Open an entry that was a regular file when it was listed, and still must be one."""
    parent, name = _parent_of(tree, entry)
    # What has replaced the file may be a pipe, at which open(2) waits, or a terminal, which would
    # become ours (O_NOCTTY).
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=parent)
    except PermissionError as error:
        raise UsageError(
            f"cannot read {entry.path}: {error.strerror}",
            hint="make the file readable, or exclude it in .danluignore",
        ) from error
    except OSError as error:
        raise _changed_error(entry) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _changed_error(entry)
    return descriptor


def _changed_error(entry: ContextEntry) -> OutsideError:
    return OutsideError(f"{entry.path} changed while it was being read", hint="build again")


def copy_entries(
    tree: ProjectTree, entries: Sequence[ContextEntry], place: Callable[[ContextEntry], Path]
) -> str:
    """Copy entries to the paths that ``place`` returns; return the digest of what was copied.

    Only the executable bit of a mode is content; the rest depends on the umask of the checkout.
    """
    digest = _ContextDigest()
    for entry in entries:
        if not entry.is_special:
            digest.add(entry, _copy_entry(tree, entry, place(entry)))
    return digest.hexdigest()


def _copy_entry(tree: ProjectTree, entry: ContextEntry, path: Path) -> bytes:
    mode = entry.status.st_mode
    _remove_earlier_match(entry, path)
    if stat.S_ISLNK(mode):
        target = _link_target(tree, entry)
        os.symlink(target, os.fsencode(path))
        return target + b"\0"
    if stat.S_ISDIR(mode):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
        return b""
    if stat.S_ISFIFO(mode):
        os.mkfifo(path)
        path.chmod(0o644)
        return b""
    # The digest is of the bytes that were copied, not of an earlier read: files may change.
    descriptor = _open_entry_file(tree, entry)
    content = hashlib.sha256()
    with os.fdopen(descriptor, "rb", buffering=0) as source, path.open("xb", 0) as copy:
        while chunk := source.read(_CHUNK_SIZE):
            content.update(chunk)
            copy.write(chunk)
        os.fchmod(copy.fileno(), 0o755 if mode & 0o100 else 0o644)
    return content.digest()


def _remove_earlier_match(entry: ContextEntry, path: Path) -> None:
    """Remove a file that an earlier match of a pattern copied to ``path``: the last one wins.

    A symlink and a directory of the same name are rejected. Otherwise the directory's files would
    be written to the symlink's target, which can be anywhere on this machine.
    """
    try:
        there = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(there) and stat.S_ISDIR(entry.status.st_mode):
        return
    if stat.S_ISDIR(there) or stat.S_ISDIR(entry.status.st_mode):
        raise UsageError(
            f"{entry.path} and another match of the pattern are both copied to {entry.target},"
            " and only one of them is a directory",
            hint="copy them with two calls of io.copy",
        )
    path.unlink()


def digest_path(project: Path, source: str, digests: FileDigests | None = None) -> str:
    """Return the digest of what ``source`` refers to in ``project``."""
    with ProjectTree(project) as tree:
        return digest_entries(tree, list_entries(tree, source), digests)
