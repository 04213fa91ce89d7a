"""Whiteouts and opaque directories: how overlayfs and OCI layers delete what a lower layer has.

A tree on disk uses overlayfs's form. A whiteout is a device 0/0 or, where no such device can be
created (on an overlay), an empty file with an extended attribute, in a directory marked ``x``. A
directory marked ``y`` is opaque: it hides what lies below. In a tar both are names that begin with
``.wh.``. Sources: Linux, Documentation/filesystems/overlayfs.rst, "whiteouts and opaque
directories" and "userxattr"; OCI image spec, layer.md, "Whiteouts".
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

WHITEOUT_PREFIX = b".wh."
#: Names with this prefix are aufs's metadata; only the opaque marker has a meaning in OCI layers.
META_PREFIX = b".wh..wh."
OPAQUE_NAME = b".wh..wh..opq"

OPAQUE_XATTR = "user.overlay.opaque"
WHITEOUT_XATTR = "user.overlay.whiteout"

# Labels of this machine (SELinux, IMA) are not content, and `trusted.*` cannot be set in a user
# namespace. overlayfs's own attributes in an untrusted layer would redirect lookups.
_CONTENT_XATTR_PREFIXES = ("user.", "security.capability", "system.posix_acl_")
_OVERLAY_XATTR_PREFIXES = ("user.overlay.",)


def is_layer_xattr(name: str) -> bool:
    """Return whether the extended attribute ``name`` is part of a layer's content."""
    return name.startswith(_CONTENT_XATTR_PREFIXES) and not name.startswith(_OVERLAY_XATTR_PREFIXES)


def read_layer_xattrs(path: str) -> dict[str, bytes]:
    """Return the extended attributes that are layer content; a link is not followed."""
    try:
        names = [name for name in os.listxattr(path, follow_symlinks=False) if is_layer_xattr(name)]
    except OSError as error:
        # Links, pipes and some file systems have none.
        if error.errno != errno.ENOTSUP:
            raise
        names = []
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in names}


def is_whiteout(path: str | bytes, status: os.stat_result) -> bool:
    """Return whether the entry at ``path`` is a whiteout; ``status`` is its lstat(2) result."""
    # Both forms of the kernel: a device 0/0, or an empty file with the attribute
    # (filesystems/overlayfs.rst, whiteouts and opaque directories).
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == 0
    if not stat.S_ISREG(status.st_mode) or status.st_size:
        return False
    return _read_xattr(path, WHITEOUT_XATTR) is not None


def is_opaque(path: str | bytes) -> bool:
    """Return whether a directory hides what lies below it."""
    return _read_xattr(path, OPAQUE_XATTR) == b"y"


def make_whiteout(name: str | bytes, *, directory: int) -> None:
    """Create the whiteout ``name`` in the open directory ``directory``, which has no such entry."""
    try:
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory)
        return
    # mknod of 0/0 is allowed without privileges since Linux 5.8, but never on an overlay.
    except PermissionError:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        os.setxattr(file, WHITEOUT_XATTR, b"y")
    finally:
        os.close(file)
    # overlayfs looks for the attribute only in marked directories; opaque ones stay opaque.
    with suppress(FileExistsError):
        os.setxattr(directory, OPAQUE_XATTR, b"x", os.XATTR_CREATE)


def _read_xattr(path: str | bytes, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError:
        return None
