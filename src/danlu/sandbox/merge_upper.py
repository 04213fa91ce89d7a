"""Apply the changes that a run made to the tree that it made them to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from danlu.oci.overlay import OPAQUE_XATTR, is_opaque, is_whiteout
from danlu.util.files import remove_tree


def merge_upper(upper: Path, tree: Path, *, keep_whiteouts: bool = False) -> None:
    """Apply the changes in the overlayfs upper directory ``upper`` to its lower one, ``tree``.

    Both must be on one file system, since files are moved. ``upper`` keeps empty directories. With
    ``keep_whiteouts`` the tree is itself an upper directory over other layers: what was removed
    stays marked as removed.
    """
    with os.scandir(upper) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        target = tree / entry.name
        status = entry.stat(follow_symlinks=False)
        if is_whiteout(entry.path, status):
            remove_tree(target)
            if keep_whiteouts:
                os.replace(entry.path, target)
        elif not stat.S_ISDIR(status.st_mode):
            if target.is_dir() and not target.is_symlink():
                remove_tree(target)
            os.replace(entry.path, target)
        elif target.is_dir() and not target.is_symlink() and not is_opaque(entry.path):
            merge_upper(Path(entry.path), target, keep_whiteouts=keep_whiteouts)
            _copy_state(status, target)
        else:
            remove_tree(target)
            target.mkdir()
            if keep_whiteouts and is_opaque(entry.path):
                os.setxattr(target, OPAQUE_XATTR, b"y")
            merge_upper(Path(entry.path), target, keep_whiteouts=keep_whiteouts)
            _copy_state(status, target)


def _copy_state(status: os.stat_result, target: Path) -> None:
    os.chown(target, status.st_uid, status.st_gid)
    os.chmod(target, stat.S_IMODE(status.st_mode))
    # Last, because moving entries into the directory changed its time.
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
