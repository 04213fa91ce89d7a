"""How overlayfs and OCI layers say that something of a lower layer is gone.

A tree on disk is in overlayfs's form. A deletion is a device 0/0, or, where no such device can be
made (on an overlay itself), an empty file with an attribute in a directory marked ``x``. A
directory marked ``y`` is opaque: it hides what lies below. In a tar both are names that begin
with ``.wh.``. Sources: Linux, Documentation/filesystems/overlayfs.rst, "whiteouts and opaque
directories" and "userxattr"; OCI image spec, layer.md, "Whiteouts".
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

__all__ = [
    "META_PREFIX",
    "OPAQUE_NAME",
    "OPAQUE_XATTR",
    "WHITEOUT_PREFIX",
    "WHITEOUT_XATTR",
    "is_opaque",
    "is_whiteout",
    "make_whiteout",
    "travels",
]

WHITEOUT_PREFIX = b".wh."
#: Names with this prefix are aufs's own remarks; only the opaque one means anything.
META_PREFIX = b".wh..wh."
OPAQUE_NAME = b".wh..wh..opq"

OPAQUE_XATTR = "user.overlay.opaque"
WHITEOUT_XATTR = "user.overlay.whiteout"

# Labels of the machine (SELinux, IMA) say nothing of the content, and `trusted.*` cannot be set
# in a user namespace. overlayfs's own attributes would, set by a stranger, redirect look-ups.
_KEPT = ("user.", "security.capability", "system.posix_acl_")
_DROPPED = ("user.overlay.",)


def travels(name: str) -> bool:
    """Whether the extended attribute ``name`` belongs to a layer's content."""
    return name.startswith(_KEPT) and not name.startswith(_DROPPED)


def is_whiteout(path: str | bytes, status: os.stat_result) -> bool:
    """Whether the entry at ``path``, whose status (of itself, no link) is given, is a deletion."""
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == 0
    if not stat.S_ISREG(status.st_mode) or status.st_size:
        return False
    return _attribute(path, WHITEOUT_XATTR) is not None


def is_opaque(path: str | bytes) -> bool:
    """Whether a directory hides what lies below it."""
    return _attribute(path, OPAQUE_XATTR) == b"y"


def make_whiteout(name: str | bytes, *, directory: int) -> None:
    """Make the deletion ``name`` in the directory open as ``directory``, where nothing is."""
    try:
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory)
        return
    except PermissionError:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        os.setxattr(file, WHITEOUT_XATTR, b"y")
    finally:
        os.close(file)
    # Without this mark overlayfs does not look for the attribute; an opaque one stays opaque.
    with suppress(FileExistsError):
        os.setxattr(directory, OPAQUE_XATTR, b"x", os.XATTR_CREATE)


def _attribute(path: str | bytes, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError:
        return None
