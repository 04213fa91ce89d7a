"""Layers merged by copying, for where no overlay can be mounted, and the changes made to them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from danlu.oci.overlay import OPAQUE_XATTR, is_opaque, is_whiteout, make_whiteout
from danlu.sandbox import _linux
from danlu.util.files import remove_tree

__all__ = ["difference", "lay", "merged", "snapshot"]

# What shows that an entry was changed: ctime cannot be set back.
Signature = tuple[int, int, int, int]
# On every directory that was copied: one made anew may get the inode number of one removed.
_MARK = "user.danlu.copied"


@contextmanager
def merged(layers: Sequence[Path], target: Path, *, upper: Path | None) -> Iterator[None]:
    """Fill the empty directory ``target`` with ``layers``; changes go to ``upper`` afterwards.

    What ``upper`` has already is a change too.
    """
    for layer in layers:
        lay(layer, target)
    before = snapshot(target)
    if upper is not None:
        lay(upper, target)
        for entry in list(upper.iterdir()):
            remove_tree(entry)
    target.chmod(0o755)
    _linux.mount(str(target), str(target), flags=_linux.MS_BIND)
    try:
        flags = _linux.MS_BIND | _linux.MS_REMOUNT | _linux.MS_NODEV
        _linux.mount("none", str(target), flags=flags)
        yield
    finally:
        _linux.umount(str(target), _linux.MNT_DETACH)
    if upper is not None:
        difference(target, before, upper)


def lay(layer: Path, target: Path) -> None:
    """Copy ``layer`` over ``target``; its deletions delete."""
    _lay(str(layer), str(target), {})


def _lay(source: str, target: str, links: dict[tuple[int, int], str]) -> None:
    with os.scandir(source) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        status = entry.stat(follow_symlinks=False)
        there = f"{target}/{entry.name}"
        if is_whiteout(entry.path, status):
            remove_tree(Path(there))
        elif stat.S_ISDIR(status.st_mode):
            _lay_directory(entry.path, there, status, links)
        else:
            remove_tree(Path(there))
            key = (status.st_dev, status.st_ino)
            if status.st_nlink > 1 and key in links:
                os.link(links[key], there, follow_symlinks=False)
                continue
            links[key] = there
            _copy_file(entry.path, there, status)


def _lay_directory(
    source: str, target: str, status: os.stat_result, links: dict[tuple[int, int], str]
) -> None:
    plain = os.path.isdir(target) and not os.path.islink(target)
    if not plain or is_opaque(source):
        remove_tree(Path(target))
        os.mkdir(target)
    _lay(source, target, links)
    _copy_metadata(source, target, status)


def _copy_file(source: str, target: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        shutil.copyfile(source, target)
    elif stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
    else:
        os.mknod(target, status.st_mode, status.st_rdev)
    _copy_metadata(source, target, status)


def _copy_metadata(source: str, target: str, status: os.stat_result) -> None:
    os.lchown(target, status.st_uid, status.st_gid)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(target, status.st_mode & 0o7777)
    for name in os.listxattr(source, follow_symlinks=False):
        if not name.startswith(("user.overlay.", "trusted.overlay.", _MARK)):
            value = os.getxattr(source, name, follow_symlinks=False)
            os.setxattr(target, name, value, follow_symlinks=False)
    times = (status.st_atime_ns, status.st_mtime_ns)
    os.utime(target, ns=times, follow_symlinks=False)


def snapshot(root: Path) -> dict[str, Signature]:
    """Every entry below ``root``, by its path relative to it, as it is now.

    Marks the directories, to know them again.
    """
    for path, status in _walk(str(root), ""):
        if stat.S_ISDIR(status.st_mode):
            os.setxattr(root / path, _MARK, b"y")
    return {path: _signature(status) for path, status in _walk(str(root), "")}


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_ctime_ns, status.st_mtime_ns, status.st_mode


def _walk(root: str, below: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(f"{root}/{below}") as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = f"{below}/{entry.name}" if below else entry.name
        status = entry.stat(follow_symlinks=False)
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(root, path)


def difference(root: Path, before: dict[str, Signature], upper: Path) -> None:
    """Move what changed in ``root`` since ``before`` to ``upper``, in overlayfs's form."""
    now = dict(_walk(str(root), ""))
    fresh = _fresh_directories(root, now, before)
    for path, status in now.items():
        if before.get(path) != _signature(status) or _above(path) in fresh:
            _move(root, path, now, upper)
            if path in fresh and path in before and _above(path) not in fresh:
                os.setxattr(upper / path, OPAQUE_XATTR, b"y")
    for path in before:
        above = _above(path)
        if path not in now and above not in fresh and _is_directory(above, now):
            _repeat_parents(root, path, now, upper)
            _make_whiteout(upper / path)
    # A directory's time changes when entries are put in it, so times come last.
    for path, status in now.items():
        if stat.S_ISDIR(status.st_mode) and (upper / path).is_dir():
            os.utime(upper / path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _fresh_directories(
    root: Path, now: dict[str, os.stat_result], before: dict[str, Signature]
) -> set[str]:
    """The directories that are not those of the layers at their path: nothing shines through."""
    fresh: set[str] = set()
    for path, status in now.items():
        if not stat.S_ISDIR(status.st_mode):
            continue
        old = before.get(path)
        same = old is not None and old[0] == status.st_ino and _MARK in os.listxattr(root / path)
        if _above(path) in fresh or not same:
            fresh.add(path)
    return fresh


def _is_directory(path: str, now: dict[str, os.stat_result]) -> bool:
    return path == "" or (path in now and stat.S_ISDIR(now[path].st_mode))


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def _move(root: Path, path: str, now: dict[str, os.stat_result], upper: Path) -> None:
    _repeat_parents(root, path, now, upper)
    status = now[path]
    if stat.S_ISDIR(status.st_mode):
        _repeat(root, path, status, upper)
    else:
        os.rename(root / path, upper / path)


def _repeat_parents(root: Path, path: str, now: dict[str, os.stat_result], upper: Path) -> None:
    parts = path.split("/")[:-1]
    for count in range(1, len(parts) + 1):
        parent = "/".join(parts[:count])
        _repeat(root, parent, now[parent], upper)


def _repeat(root: Path, path: str, status: os.stat_result, upper: Path) -> None:
    if not (upper / path).exists():
        (upper / path).mkdir()
        _copy_metadata(str(root / path), str(upper / path), status)


def _make_whiteout(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        make_whiteout(path.name, directory=directory)
    finally:
        os.close(directory)
