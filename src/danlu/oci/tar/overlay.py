"""The names by which overlayfs and OCI layers say that something of a lower layer is gone."""

from __future__ import annotations

import os
import stat

__all__ = [
    "META_PREFIX",
    "OPAQUE_NAME",
    "OPAQUE_XATTR",
    "WHITEOUT_PREFIX",
    "is_whiteout",
    "travels",
]

#: OCI image spec, layer.md, "Whiteouts".
WHITEOUT_PREFIX = b".wh."
#: Names with this prefix are aufs's own remarks; only the opaque one means anything.
META_PREFIX = b".wh..wh."
OPAQUE_NAME = b".wh..wh..opq"

#: Linux, Documentation/filesystems/overlayfs.rst, "userxattr".
OPAQUE_XATTR = "user.overlay.opaque"

# Labels of the machine (SELinux, IMA) say nothing of the content, and `trusted.*` cannot be set
# in a user namespace. overlayfs's own attributes would, set by a stranger, redirect look-ups.
_KEPT = ("user.", "security.capability", "system.posix_acl_")
_DROPPED = ("user.overlay.",)


def travels(name: str) -> bool:
    """Whether the extended attribute ``name`` belongs to a layer's content."""
    return name.startswith(_KEPT) and not name.startswith(_DROPPED)


def is_whiteout(status: os.stat_result) -> bool:
    """Whether this is a deletion in overlayfs's form."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
