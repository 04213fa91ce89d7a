"""What an upper repeats of the layers below without changing it, and marks that hide nothing.

The kernel copies a file up when it is opened for writing, written or not, and marks new
directories opaque or not as its version and configuration have it; copies (:mod:`copied`) know of
neither. Without these a layer is the difference that a program made, whoever recorded it.
"""

from __future__ import annotations

import filecmp
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from danlu.oci.overlay import OPAQUE_XATTR, is_opaque, is_whiteout, travels
from danlu.sandbox.union import Union

__all__ = ["drop_unchanged"]


class _Directory(msgspec.Struct, frozen=True):
    """A directory of the upper, its status before anything in it went, and what is below it.

    ``lower`` is None where nothing of the layers shines through.
    """

    parts: tuple[str, ...]
    path: str
    status: os.stat_result
    lower: str | None


def drop_unchanged(upper: Path, below: Sequence[Path], *, epoch: int) -> None:
    """Remove from ``upper`` what leaves the merged view over ``below`` as it is.

    ``upper`` is in overlayfs's form with no time after ``epoch`` (seconds, UTC), which is also
    how times of ``below`` count. Nothing may run in the tree any more.
    """
    union = Union(below)
    visited = [_Directory((), str(upper), os.lstat(upper), str(below[-1]) if below else None)]
    for directory in visited:
        visited += _visit(directory, union, epoch)
    # What is in a directory goes before it does, and both change its time.
    for directory in reversed(visited):
        times = (directory.status.st_atime_ns, directory.status.st_mtime_ns)
        os.utime(directory.path, ns=times)
        if directory.parts and directory.lower and _same(directory, epoch):
            with suppress(OSError):
                os.rmdir(directory.path)


def _visit(directory: _Directory, union: Union, epoch: int) -> list[_Directory]:
    """Remove what is not needed of a directory's files; its directories."""
    found = []
    with os.scandir(directory.path) as entries:
        for entry in list(entries):
            parts = (*directory.parts, entry.name)
            status = entry.stat(follow_symlinks=False)
            lower = union.entry(parts) if directory.lower else None
            if stat.S_ISDIR(status.st_mode):
                hides = lower is not None and bool(union.directories(parts))
                found.append(_directory(entry.path, parts, status, lower if hides else None))
            elif _needless(entry.path, status, lower, epoch):
                os.unlink(entry.path)
    return found


def _directory(
    path: str, parts: tuple[str, ...], status: os.stat_result, lower: str | None
) -> _Directory:
    if lower is None:
        with suppress(OSError):
            os.removexattr(path, OPAQUE_XATTR)
    elif is_opaque(path):
        lower = None
    return _Directory(parts, path, status, lower)


def _needless(path: str, status: os.stat_result, lower: str | None, epoch: int) -> bool:
    if is_whiteout(path, status):
        return lower is None
    # A name of several is needed for the others' sake.
    if lower is None or status.st_nlink > 1:
        return False
    return _same_entry(path, status, lower, epoch)


def _same(directory: _Directory, epoch: int) -> bool:
    assert directory.lower is not None
    return _same_entry(directory.path, directory.status, directory.lower, epoch)


def _same_entry(path: str, status: os.stat_result, lower: str, epoch: int) -> bool:
    other = os.lstat(lower)
    if _metadata(status, epoch) != _metadata(other, epoch):
        return False
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(path) == os.readlink(lower)
    if _attributes(path) != _attributes(lower):
        return False
    if not stat.S_ISREG(status.st_mode):
        return True
    return status.st_size == other.st_size and filecmp.cmp(path, lower, shallow=False)


def _metadata(status: os.stat_result, epoch: int) -> tuple[int, int, int, int]:
    modified = min(status.st_mtime_ns, epoch * 1_000_000_000)
    return status.st_mode, status.st_uid, status.st_gid, modified


def _attributes(path: str) -> dict[str, bytes]:
    """The extended attributes that are content; ``path`` is no link."""
    names = [name for name in os.listxattr(path, follow_symlinks=False) if travels(name)]
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
