"""The download cache: its size, and eviction of what was least recently used.

Everything in it can be downloaded again, so evicting it costs only time.
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

#: Files and directories in ``Paths.cache`` that are evicted as a whole.
_DOWNLOAD_PATTERNS = (
    "apt/debs/*.control",
    "apt/debs/*.deb",
    "apt/debs/partial/*",
    "apt/homes/*",
    "conda/*",
    "git/db/*",
    "git/trees/*",
    "http/*.part",
    "http/.local-*",
    "http/sha256/*",
    "uv/.removed-*",
    "uv/.tmp*",
    "uv/sdists-v*/*/*",
    "wheels/*",
)

#: The files through which uv finds an unpacked wheel: a symlink, and its name with these suffixes.
_POINTER_SUFFIXES = ("", ".http", ".rev")


#: Where uv unpacks an archive while it downloads it. Killed, it leaves that there for ever.
_LEFTOVERS = "uv/.tmp*"

#: The names under which they are removed.
_REMOVED = "uv/.removed-*"


class PruneResult(msgspec.Struct, frozen=True):
    """The number of evicted downloads, the bytes freed, and the bytes that are left.

    ``busy`` means that a build is using the cache, so nothing could be evicted.
    """

    count: int
    freed: int
    kept: int
    busy: bool = False


class _CachedDownload(msgspec.Struct, frozen=True, order=True):
    """A file or directory: time of last use (seconds since 1970), path, size in bytes.

    ``pointers`` refer to it and are useless without it.
    """

    used: float
    path: Path
    size: int
    pointers: tuple[Path, ...] = ()


def prevent_pruning(cache: Path) -> AbstractContextManager[None]:
    """Keep all downloads from being evicted while the block runs."""
    return file_lock(cache / "lock", shared=True)


def cache_size(cache: Path) -> int:
    """Return the number of bytes that could be freed."""
    return sum(item.size for item in _list_downloads(cache))


def prune(cache: Path, keep_bytes: int, *, dry_run: bool = False) -> PruneResult:
    """Evict the least recently used downloads until at most ``keep_bytes`` are left.

    A ``dry_run`` only counts them, and keeps no build waiting.
    """
    with nullcontext(True) if dry_run else try_file_lock(cache / "lock") as free:
        items = sorted(_list_downloads(cache))
        total = kept = sum(item.size for item in items)
        count = 0
        for item in items:
            if kept <= keep_bytes or not free:
                break
            if dry_run or _remove_download(item):
                kept -= item.size
                count += 1
    return PruneResult(count, total - kept, kept, busy=not free and kept > keep_bytes)


def has_leftovers(cache: Path) -> bool:
    """Return whether an interrupted uv may have left half a download, or one is running."""
    return next(cache.glob(_LEFTOVERS), None) is not None


def sweep(cache: Path) -> None:
    """Remove what interrupted downloads of uv left, once at a time.

    Waits until no build uses the cache.
    """
    with try_file_lock(cache / "sweep.lock") as is_free:
        if is_free:
            _remove_leftovers(cache)


def _remove_leftovers(cache: Path) -> None:
    with file_lock(cache / "lock"):
        trees = list(cache.glob(_LEFTOVERS))
        removed = [tree.rename(tree.with_name(f".removed-{tree.name[1:]}")) for tree in trees]
    for tree in (*removed, *cache.glob(_REMOVED)):
        remove_tree(tree)


def _list_downloads(cache: Path) -> Iterator[_CachedDownload]:
    for place in _DOWNLOAD_PATTERNS:
        for path in cache.glob(place):
            # A download in progress may be renamed at any time.
            with suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISDIR(status.st_mode):
                    yield _CachedDownload(_last_use(status), path, _tree_size(path))
                elif path.suffix != ".lock":
                    yield _CachedDownload(_last_use(status), path, status.st_size)
    yield from _list_unpacked_wheels(cache / "uv")


def _last_use(status: os.stat_result) -> float:
    """Return when a file was last read, or created if access times are disabled (noatime)."""
    return max(status.st_atime, status.st_mtime)


def _tree_size(tree: Path) -> int:
    return sum(status.st_size for status in _stat_files(tree))


def _stat_files(tree: Path) -> Iterator[os.stat_result]:
    for directory, _, names in os.walk(tree):
        for name in names:
            yield os.lstat(f"{directory}/{name}")


def _list_unpacked_wheels(uv: Path) -> Iterator[_CachedDownload]:
    """Yield the unpacked wheels that no layer shares: with shared inodes nothing would be freed."""
    pointers: dict[Path, list[Path]] = {}
    for link in (*uv.glob("wheels-v*/**/*"), *uv.glob("sdists-v*/**/*")):
        if link.is_symlink():
            pointers.setdefault(link.resolve(), []).append(link)
    for tree in uv.glob("archive-v*/*"):
        if any(status.st_nlink > 1 for status in _stat_files(tree)):
            continue
        # uv does not check that the target of a pointer exists, so they must go together.
        links = pointers.get(tree.resolve(), [])
        siblings = tuple(
            link.with_name(link.name + end) for link in links for end in _POINTER_SUFFIXES
        )
        yield _CachedDownload(_last_use(tree.stat()), tree, _tree_size(tree), siblings)


def _remove_download(item: _CachedDownload) -> bool:
    """Remove a download unless somebody holds its own lock; return whether it was removed."""
    lock = item.path.with_name(f"{item.path.name}.lock")
    with try_file_lock(lock) if lock.exists() else nullcontext(True) as free:
        if free:
            for path in (*item.pointers, item.path):
                remove_tree(path)
        return free
