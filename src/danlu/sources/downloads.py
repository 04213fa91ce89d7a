"""What is kept of downloads: how much room it takes, and how it is given back.

Everything here is fetched again when it is wanted and gone, so nothing but time is lost with it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import msgspec

from danlu.util.files import remove_tree
from danlu.util.locks import file_lock, try_file_lock

__all__ = ["Pruned", "in_use", "prune", "size"]

#: What goes as a whole, below ``Paths.cache``.
_PLACES = (
    "apt/debs/*.control",
    "apt/debs/*.deb",
    "apt/debs/partial/*",
    "apt/homes/*",
    "git/db/*",
    "git/trees/*",
    "http/*.part",
    "http/sha256/*",
    "uv/archive-v*/*",
    "uv/sdists-v*/*/*",
    "wheels/*",
)


class Pruned(msgspec.Struct, frozen=True):
    """How many downloads went, with how many bytes, and how many bytes are left.

    ``busy`` says that a build is using them, so that none could go.
    """

    count: int
    freed: int
    kept: int
    busy: bool = False


class _Item(msgspec.Struct, frozen=True, order=True):
    """A file or a tree: when it was last used (seconds since 1970), where it is, its bytes."""

    used: float
    path: Path
    size: int


def in_use(cache: Path) -> AbstractContextManager[None]:
    """Keep all downloads from being pruned while the context lasts."""
    return file_lock(cache / "lock", shared=True)


def size(cache: Path) -> int:
    """The bytes that could be given back."""
    return sum(item.size for item in _items(cache))


def prune(cache: Path, keep_bytes: int) -> Pruned:
    """Remove what was not used for longest, until ``keep_bytes`` are left."""
    with try_file_lock(cache / "lock") as free:
        items = sorted(_items(cache))
        total = kept = sum(item.size for item in items)
        count = 0
        for item in items:
            if kept <= keep_bytes or not free:
                break
            if _remove(item.path):
                kept -= item.size
                count += 1
    return Pruned(count, total - kept, kept, busy=not free and kept > keep_bytes)


def _items(cache: Path) -> Iterator[_Item]:
    for place in _PLACES:
        for path in cache.glob(place):
            with suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISDIR(status.st_mode):
                    taken = _tree_size(path)
                elif path.suffix == ".lock":
                    continue
                else:
                    taken = status.st_size
                if taken is not None:
                    # Without access times (a mount with noatime) it is the oldest that goes.
                    yield _Item(max(status.st_atime, status.st_mtime), path, taken)


def _tree_size(tree: Path) -> int | None:
    """The bytes of a tree; None for a wheel's while a layer of the store has the same inodes."""
    shared = tree.parent.name.startswith("archive-v")
    total = 0
    for directory, _, names in os.walk(tree):
        for name in names:
            status = os.lstat(f"{directory}/{name}")
            if shared and status.st_nlink > 1:
                return None
            total += status.st_size
    return total


def _remove(path: Path) -> bool:
    """Whether ``path`` went: not where somebody holds its own lock beside it."""
    lock = path.with_name(f"{path.name}.lock")
    with try_file_lock(lock) if lock.exists() else nullcontext(True) as free:
        if free:
            remove_tree(path)
        return free
