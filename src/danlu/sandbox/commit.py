"""What a step left behind, made fit to be a layer: volatile files go, times are clamped.

The list is that of DESIGN D3: files that differ between two equal runs and that nothing in an
image reads. A step is hostile here: no link that it made is ever followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from danlu.oci.overlay import OPAQUE_XATTR, is_whiteout
from danlu.sandbox.unchanged import drop_unchanged
from danlu.util.files import remove_tree

__all__ = ["finish_upper"]

# Directories that lose everything in them.
_EMPTIED = ("run", "tmp", "var/tmp")
# Directories that lose their files; packages rely on the directories below (/var/log/nginx).
_CLEARED = ("var/log", "var/cache/apt", "var/lib/apt/lists")
# Single files: directory, pattern.
_DROPPED = (
    ("etc", ".pwd.lock"),
    ("etc", "group-"),
    ("etc", "gshadow-"),
    ("etc", "passwd-"),
    ("etc", "shadow-"),
    ("etc", "subgid-"),
    ("etc", "subuid-"),
    ("etc/ssh", "ssh_host_*_key"),
    ("etc/ssh", "ssh_host_*_key.pub"),
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


def finish_upper(upper: Path, epoch: int, *, below: Sequence[Path] = ()) -> None:
    """Remove the volatile files of the tree ``upper`` and set times after ``epoch`` to it.

    ``upper`` may be what a step changed over the layers ``below``, in overlayfs's form, or a whole
    root. ``epoch`` is in seconds (UTC). Deletions of volatile files go too: the layers below have
    none. Sockets go, because no archive can hold them; so does what only repeats ``below``.
    Nothing may run in the tree any more.
    """
    root = str(upper)
    for name in _EMPTIED:
        _empty(root, name)
    for name in _CLEARED:
        _clear(root, name)
    for name, pattern in _DROPPED:
        _drop(root, name, pattern)
    _forget_machine(root)
    _clamp(root, epoch * 1_000_000_000)
    if below:
        drop_unchanged(upper, below, epoch=epoch)


def _real(root: str, name: str) -> str | None:
    """The directory ``name`` of the tree, if no part of its path is a link."""
    path = root
    for part in name.split("/"):
        path = f"{path}/{part}"
        try:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                return None
        except FileNotFoundError:
            return None
    return path


def _empty(root: str, name: str) -> None:
    path = _real(root, name)
    if path is None:
        return
    for entry in _entries(path):
        remove_tree(Path(entry.path))
    _show_below(path)


def _clear(root: str, name: str) -> None:
    path = _real(root, name)
    if path is None:
        return
    for entry in _walk(path):
        if entry.is_dir(follow_symlinks=False):
            _show_below(entry.path)
        else:
            os.unlink(entry.path)
    _show_below(path)


def _show_below(directory: str) -> None:
    """Drop the mark that hides the layers below: there is nothing in them to hide."""
    try:
        os.removexattr(directory, OPAQUE_XATTR, follow_symlinks=False)
    except OSError:
        return


def _drop(root: str, name: str, pattern: str) -> None:
    path = _real(root, name)
    if path is None:
        return
    for entry in _entries(path):
        if fnmatchcase(entry.name, pattern):
            remove_tree(Path(entry.path))


def _forget_machine(root: str) -> None:
    # systemd fills an empty file at the first start (machine-id(5)).
    directory, name = _MACHINE_ID
    above = _real(root, directory)
    if above is None:
        return
    path = f"{above}/{name}"
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISREG(status.st_mode) and status.st_size:
        os.truncate(path, 0)


def _clamp(root: str, epoch: int) -> None:
    for entry in _walk(root):
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISSOCK(status.st_mode):
            os.unlink(entry.path)
        elif status.st_mtime_ns > epoch and not is_whiteout(entry.path, status):
            os.utime(entry.path, ns=(epoch, epoch), follow_symlinks=False)
    if os.lstat(root).st_mtime_ns > epoch:
        os.utime(root, ns=(epoch, epoch))


def _entries(path: str) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return list(entries)


def _walk(path: str) -> list[os.DirEntry[str]]:
    """Every entry below ``path``, a directory after what is in it; of any depth."""
    found: list[os.DirEntry[str]] = []
    waiting = [path]
    while waiting:
        entries = _entries(waiting.pop())
        found += entries
        waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    found.reverse()
    return found
