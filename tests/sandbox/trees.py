"""Small trees, created from a mapping and read back with everything that a layer keeps."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from danlu.oci.overlay import OPAQUE_XATTR, is_opaque, is_whiteout, make_whiteout

GONE = object()


def write(root: Path, entries: Mapping[str, object]) -> Path:
    """``name/``: a directory (value ``"opaque"`` marks it); text: a file; ``->x``: a link."""
    root.mkdir(parents=True, exist_ok=True)
    for name, value in entries.items():
        path = root / name.rstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if value is GONE:
            directory = os.open(path.parent, os.O_RDONLY)
            make_whiteout(path.name, directory=directory)
            os.close(directory)
        elif name.endswith("/"):
            path.mkdir(exist_ok=True)
            if value == "opaque":
                os.setxattr(path, OPAQUE_XATTR, b"y")
        elif isinstance(value, str) and value.startswith("->"):
            path.symlink_to(value[2:])
        else:
            path.write_text(str(value))
    return root


def read(root: Path) -> dict[str, str]:
    """Every entry below ``root`` in one word each: kind, mode, owner, content."""
    results = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        mode = f"{stat.S_IMODE(status.st_mode):o} {status.st_uid}:{status.st_gid}"
        name = str(path.relative_to(root))
        if is_whiteout(str(path), status):
            results[name] = "gone"
        elif path.is_symlink():
            results[name] = f"->{os.readlink(path)}"
        elif path.is_dir():
            results[name] = f"directory {mode}{' opaque' if is_opaque(str(path)) else ''}"
        else:
            results[name] = f"file {mode} {path.read_text()}"
    return results
