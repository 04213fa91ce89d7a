"""Turn what a step left behind into a reproducible layer.

Volatile files (which differ between two equal runs, and which nothing in an image reads) are
removed, times are clamped, also those in Java's keystore, TeX's list of files is sorted, and
entries that only repeat the layers below are dropped. The step is untrusted: no link that it
created is ever followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from danlu.oci.overlay import (
    OPAQUE_XATTR,
    is_opaque,
    is_whiteout,
    make_whiteout,
    read_layer_xattrs,
)
from danlu.sandbox.java_keystore import set_keystore_dates
from danlu.sandbox.layer_view import LayerView
from danlu.util.files import have_same_content, remove_tree

# Directories whose contents are removed.
_EMPTIED_DIRECTORIES = ("tmp", "var/tmp")
# Directories whose files are removed. Their subdirectories stay, because programs rely on them
# (/var/log/nginx, /run/lock) and no systemd-tmpfiles creates them in a container.
_FILELESS_DIRECTORIES = ("run", "var/log", "var/cache/apt", "var/lib/apt/lists")
# Volatile files at any depth: directory and pattern.
_VOLATILE_FILES_BELOW = (("var/lib/texmf/web2c", "*.log"),)
# Volatile files: directory and pattern.
_VOLATILE_FILES = (
    ("etc", ".pwd.lock"),
    ("etc", "group-"),
    ("etc", "gshadow-"),
    ("etc", "passwd-"),
    ("etc", "shadow-"),
    ("etc", "subgid-"),
    ("etc", "subuid-"),
    ("etc/ssh", "ssh_host_*_key"),
    ("etc/ssh", "ssh_host_*_key.pub"),
    ("etc/ssl/certs", "ssl-cert-snakeoil.pem"),
    ("etc/ssl/private", "ssl-cert-snakeoil.key"),
    ("var/cache/debconf", "*-old"),
    ("var/cache/ldconfig", "aux-cache"),
    ("var/lib/dbus", "machine-id"),
    ("var/lib/dpkg", "available-old"),
    ("var/lib/dpkg", "diversions-old"),
    ("var/lib/dpkg", "lock*"),
    ("var/lib/dpkg", "statoverride-old"),
    ("var/lib/dpkg", "status-old"),
    ("var/lib/dpkg/triggers", "Lock"),
)
_MACHINE_ID = ("etc", "machine-id")
_JAVA_KEYSTORE = ("etc/ssl/certs/java", "cacerts")
_TEX_FILE_LIST = ("var/lib/texmf", "ls-R")

#: Debian's keystore has 170 KB.
_MAX_REWRITTEN_SIZE = 16 << 20


def finalize_upper(upper: Path, epoch: int, *, below: Sequence[Path] = ()) -> None:
    """Remove the volatile files of the tree ``upper`` and set times after ``epoch`` to it.

    ``upper`` is either what a step changed on top of the layers ``below``, in overlayfs's form, or
    a whole root. ``epoch`` is in seconds (UTC). Whiteouts of volatile files are removed too,
    because the layers below have none. Sockets are removed because no archive can contain them.
    Nothing may be running in the tree any more.
    """
    root = str(upper)
    for name in _EMPTIED_DIRECTORIES:
        _remove_contents(root, name)
    for name in _FILELESS_DIRECTORIES:
        _remove_files(root, name)
    for name, pattern in _VOLATILE_FILES_BELOW:
        _remove_matching_below(root, name, pattern)
    for name, pattern in _VOLATILE_FILES:
        _remove_matching(root, name, pattern)
    _truncate_machine_id(root)
    _rewrite_file(root, _JAVA_KEYSTORE, lambda data: set_keystore_dates(data, epoch))
    _rewrite_file(root, _TEX_FILE_LIST, sort_file_list)
    _clamp_times(root, epoch * 1_000_000_000)
    if below:
        prune_upper(upper, below, epoch=epoch)


def give_home(upper: Path, home: str, uid: int, gid: int) -> None:
    """Give what belongs to root at and below ``home`` (absolute) to ``uid`` and ``gid``.

    ``upper`` is as for :func:`finalize_upper`.
    """
    path = _real_directory(str(upper), home.strip("/"))
    if path is None:
        return
    for place in (path, *(entry.path for entry in walk_entries(path))):
        status = os.lstat(place)
        if is_whiteout(place, status) or 0 not in (status.st_uid, status.st_gid):
            continue
        os.chown(place, status.st_uid or uid, status.st_gid or gid, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            os.chmod(place, stat.S_IMODE(status.st_mode) & 0o1777)


def _real_directory(root: str, name: str) -> str | None:
    """Return the directory ``name`` of the tree if no component of its path is a link."""
    path = root
    for part in name.split("/"):
        path = f"{path}/{part}"
        try:
            # The step may have replaced `var` by a link to the machine's /etc.
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                return None
        except FileNotFoundError:
            return None
    return path


def _remove_contents(root: str, name: str) -> None:
    path = _real_directory(root, name)
    if path is None:
        return
    for entry in _scan_entries(path):
        remove_tree(Path(entry.path))
    _clear_opaque(path)


def _remove_files(root: str, name: str) -> None:
    path = _real_directory(root, name)
    if path is None:
        return
    for entry in walk_entries(path):
        if entry.is_dir(follow_symlinks=False):
            _clear_opaque(entry.path)
        else:
            os.unlink(entry.path)
    _clear_opaque(path)


def _clear_opaque(directory: str) -> None:
    """Remove the opaque mark: the layers below have nothing left to hide here."""
    try:
        os.removexattr(directory, OPAQUE_XATTR, follow_symlinks=False)
    except OSError:
        return


def _remove_matching(root: str, name: str, pattern: str) -> None:
    path = _real_directory(root, name)
    if path is None:
        return
    for entry in _scan_entries(path):
        if fnmatchcase(entry.name, pattern):
            remove_tree(Path(entry.path))


def _remove_matching_below(root: str, name: str, pattern: str) -> None:
    path = _real_directory(root, name)
    if path is None:
        return
    for entry in walk_entries(path):
        if fnmatchcase(entry.name, pattern) and not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)


def _truncate_machine_id(root: str) -> None:
    # An empty file makes systemd create an id at first boot (machine-id(5)).
    directory, name = _MACHINE_ID
    above = _real_directory(root, directory)
    if above is None:
        return
    path = f"{above}/{name}"
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISREG(status.st_mode) and status.st_size:
        os.truncate(path, 0)


def _rewrite_file(
    root: str, place: tuple[str, str], rewrite: Callable[[bytes], bytes | None]
) -> None:
    """Replace the content of a file by one of the same size; None of ``rewrite`` keeps it."""
    directory, name = place
    above = _real_directory(root, directory)
    if above is None:
        return
    try:
        descriptor = os.open(
            f"{above}/{name}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return
    with open(descriptor, "r+b") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return
        data = file.read(_MAX_REWRITTEN_SIZE + 1)
        changed = rewrite(data) if len(data) <= _MAX_REWRITTEN_SIZE else None
        if changed is not None:
            file.seek(0)
            file.write(changed)


def sort_file_list(data: bytes) -> bytes | None:
    """Sort the list of the files of a TeX tree, ``ls-R``; return None if it is not one.

    It has a paragraph for each directory, and the names in the order in which the file system gave
    them (mktexlsr(1)).
    """
    if not data.startswith(b"% ls-R") or not data.endswith(b"\n"):
        return None
    head, separator, body = data.partition(b"\n.:\n")
    paragraphs = [paragraph.split(b"\n") for paragraph in (b".:\n" + body[:-1]).split(b"\n\n")]
    ordered = [
        [directory, *sorted(names)]
        for directory, *names in sorted(paragraphs, key=lambda lines: lines[0].removesuffix(b":"))
    ]
    return b"\n".join([head, b"\n\n".join(map(b"\n".join, ordered)), b""]) if separator else None


def _clamp_times(root: str, epoch: int) -> None:
    for entry in walk_entries(root):
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISSOCK(status.st_mode):
            os.unlink(entry.path)
        # Whiteouts have no time in a layer.
        elif status.st_mtime_ns > epoch and not is_whiteout(entry.path, status):
            os.utime(entry.path, ns=(epoch, epoch), follow_symlinks=False)
    if os.lstat(root).st_mtime_ns > epoch:
        os.utime(root, ns=(epoch, epoch))


def _scan_entries(path: str) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return list(entries)


def walk_entries(path: str) -> list[os.DirEntry[str]]:
    """Return every entry below ``path``, at any depth, with a directory after its contents."""
    entries_below: list[os.DirEntry[str]] = []
    waiting = [path]
    while waiting:
        entries = _scan_entries(waiting.pop())
        entries_below += entries
        waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    # Changing an entry changes its directory's time, so directories must come last.
    entries_below.reverse()
    return entries_below


class _UpperDirectory(msgspec.Struct, frozen=True):
    """A directory of the upper, its original status, and the directory that it merges with.

    ``lower`` is None if nothing of the layers is visible through it.
    """

    parts: tuple[str, ...]
    path: str
    status: os.stat_result
    lower: str | None


def prune_upper(upper: Path, below: Sequence[Path], *, epoch: int) -> None:
    """Remove from ``upper`` whatever does not change the merged view over ``below``.

    The kernel copies a file up when it is opened for writing, and whether it marks new
    directories opaque depends on its version and configuration; copying
    (:mod:`~danlu.sandbox.overlay`) does neither. After this a layer is exactly the difference that
    a program made, however it was recorded. ``upper`` is in overlayfs's form and has no time after
    ``epoch`` (seconds, UTC); times of ``below`` are clamped to it for comparison. Nothing may be
    running in the tree.
    """
    view = LayerView(below)
    visited = [_UpperDirectory((), str(upper), os.lstat(upper), str(below[-1]) if below else None)]
    for directory in visited:
        visited += _prune_directory(directory, view, epoch)
    # Contents before directories: removing an entry changes the time of its directory.
    for directory in reversed(visited):
        times = (directory.status.st_atime_ns, directory.status.st_mtime_ns)
        os.utime(directory.path, ns=times)
        if directory.parts and directory.lower and _is_same_directory(directory, epoch):
            with suppress(OSError):
                os.rmdir(directory.path)


def _prune_directory(
    directory: _UpperDirectory, view: LayerView, epoch: int
) -> list[_UpperDirectory]:
    """Remove redundant files of a directory, and return its subdirectories."""
    subdirectories = []
    with os.scandir(directory.path) as entries:
        # A list, because readdir(3) may or may not return entries while others are removed.
        for entry in list(entries):
            parts = (*directory.parts, entry.name)
            status = entry.stat(follow_symlinks=False)
            lower = view.entry(parts) if directory.lower else None
            if stat.S_ISDIR(status.st_mode):
                hides = lower is not None and bool(view.directories(parts))
                subdirectories.append(
                    _classify_directory(entry.path, parts, status, lower if hides else None, view)
                )
            elif _is_redundant(entry.path, status, lower, epoch):
                os.unlink(entry.path)
    return subdirectories


def _classify_directory(
    path: str, parts: tuple[str, ...], status: os.stat_result, lower: str | None, view: LayerView
) -> _UpperDirectory:
    if lower is None:
        with suppress(OSError):
            os.removexattr(path, OPAQUE_XATTR)
    elif is_opaque(path):
        _replace_opaque(path, parts, view)
    return _UpperDirectory(parts, path, status, lower)


def _replace_opaque(path: str, parts: tuple[str, ...], view: LayerView) -> None:
    """Replace the opaque mark of a directory by whiteouts of what it hides.

    A recreated directory is recorded in either way, depending on the kernel and the builder.
    """
    os.removexattr(path, OPAQUE_XATTR)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        present = {entry.name: entry for entry in _scan_entries(path)}
        for name in sorted(view.names(parts)):
            entry = present.get(name)
            if entry is None:
                make_whiteout(name, directory=descriptor)
            elif entry.is_dir(follow_symlinks=False):
                os.setxattr(entry.path, OPAQUE_XATTR, b"y")
    finally:
        os.close(descriptor)


def _is_redundant(path: str, status: os.stat_result, lower: str | None, epoch: int) -> bool:
    if is_whiteout(path, status):
        return lower is None
    # A hard link is needed for the sake of the inode's other names.
    if lower is None or status.st_nlink > 1:
        return False
    return _is_same_entry(path, status, lower, epoch)


def _is_same_directory(directory: _UpperDirectory, epoch: int) -> bool:
    assert directory.lower is not None
    below = os.lstat(directory.lower)
    # Without the time: a temporary file, removed again, changes it and nothing else.
    mode_and_owner = _comparable_metadata(directory.status, epoch)[:3]
    if mode_and_owner != _comparable_metadata(below, epoch)[:3]:
        return False
    return read_layer_xattrs(directory.path) == read_layer_xattrs(directory.lower)


def _is_same_entry(path: str, status: os.stat_result, lower: str, epoch: int) -> bool:
    other = os.lstat(lower)
    if _comparable_metadata(status, epoch) != _comparable_metadata(other, epoch):
        return False
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(path) == os.readlink(lower)
    if read_layer_xattrs(path) != read_layer_xattrs(lower):
        return False
    if not stat.S_ISREG(status.st_mode):
        return True
    return have_same_content(path, lower)


def _comparable_metadata(status: os.stat_result, epoch: int) -> tuple[int, int, int, int]:
    modified = min(status.st_mtime_ns, epoch * 1_000_000_000)
    return status.st_mode, status.st_uid, status.st_gid, modified
