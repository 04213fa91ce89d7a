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
    "uv/sdists-v*/*/*",
    "wheels/*",
)

#: The files that lead uv to an unpacked wheel: beside a link of a name, with these endings.
_POINTERS = ("", ".http", ".rev")


class Pruned(msgspec.Struct, frozen=True):
    """How many downloads went, with how many bytes, and how many bytes are left.

    ``busy`` says that a build is using them, so that none could go.
    """

    count: int
    freed: int
    kept: int
    busy: bool = False


class _Item(msgspec.Struct, frozen=True, order=True):
    """A file or a tree: when it was last used (seconds since 1970), where it is, its bytes.

    ``pointers`` are what leads to it and is worth nothing without it.
    """

    used: float
    path: Path
    size: int
    pointers: tuple[Path, ...] = ()


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
            if _remove(item):
                kept -= item.size
                count += 1
    return Pruned(count, total - kept, kept, busy=not free and kept > keep_bytes)


def _items(cache: Path) -> Iterator[_Item]:
    for place in _PLACES:
        for path in cache.glob(place):
            # What is still being made may be renamed while we look.
            with suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISDIR(status.st_mode):
                    yield _Item(_used(status), path, _tree_size(path))
                elif path.suffix != ".lock":
                    yield _Item(_used(status), path, status.st_size)
    yield from _unpacked_wheels(cache / "uv")


def _used(status: os.stat_result) -> float:
    """When it was read; where access times are not kept, when it was made."""
    return max(status.st_atime, status.st_mtime)


def _tree_size(tree: Path) -> int:
    return sum(status.st_size for status in _files(tree))


def _files(tree: Path) -> Iterator[os.stat_result]:
    for directory, _, names in os.walk(tree):
        for name in names:
            yield os.lstat(f"{directory}/{name}")


def _unpacked_wheels(uv: Path) -> Iterator[_Item]:
    """The wheels that no layer has: the inodes of others would stay with the layer."""
    pointers: dict[Path, list[Path]] = {}
    for link in (*uv.glob("wheels-v*/**/*"), *uv.glob("sdists-v*/**/*")):
        if link.is_symlink():
            pointers.setdefault(link.resolve(), []).append(link)
    for tree in uv.glob("archive-v*/*"):
        if any(status.st_nlink > 1 for status in _files(tree)):
            continue
        # uv takes a pointer's word for it that the wheel is there.
        links = pointers.get(tree.resolve(), [])
        beside = tuple(link.with_name(link.name + end) for link in links for end in _POINTERS)
        yield _Item(_used(tree.stat()), tree, _tree_size(tree), beside)


def _remove(item: _Item) -> bool:
    """Whether it went: not where somebody holds its own lock beside it."""
    lock = item.path.with_name(f"{item.path.name}.lock")
    with try_file_lock(lock) if lock.exists() else nullcontext(True) as free:
        if free:
            for path in (*item.pointers, item.path):
                remove_tree(path)
        return free
