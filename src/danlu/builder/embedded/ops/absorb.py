"""The changes of a run laid into the tree they were made to, so that both are one layer."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from danlu.oci.overlay import is_opaque, is_whiteout
from danlu.util.files import remove_tree

__all__ = ["absorb"]


def absorb(upper: Path, tree: Path) -> None:
    """Move what ``upper`` holds (in overlayfs's form) into ``tree``, which stood below it.

    Both lie on one file system. ``upper`` is left with empty directories.
    """
    with os.scandir(upper) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        target = tree / entry.name
        status = entry.stat(follow_symlinks=False)
        if is_whiteout(entry.path, status):
            remove_tree(target)
        elif not stat.S_ISDIR(status.st_mode):
            if target.is_dir() and not target.is_symlink():
                remove_tree(target)
            os.replace(entry.path, target)
        elif target.is_dir() and not target.is_symlink() and not is_opaque(entry.path):
            absorb(Path(entry.path), target)
            _copy_state(status, target)
        else:
            remove_tree(target)
            target.mkdir()
            absorb(Path(entry.path), target)
            _copy_state(status, target)


def _copy_state(status: os.stat_result, target: Path) -> None:
    os.chown(target, status.st_uid, status.st_gid)
    os.chmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
