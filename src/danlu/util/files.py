"""Files written whole or not at all, and trees removed whatever their modes."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

__all__ = ["remove_tree", "write_atomic"]


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Write ``data`` to ``path`` so that a reader, or a crash, sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if sync:
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def remove_tree(path: Path) -> None:
    """Remove ``path`` and all below it, also directories without permissions; nothing if absent."""

    def retry(function: object, name: str, error: object) -> None:
        parent = os.path.dirname(name)
        os.chmod(parent, stat.S_IRWXU)
        if os.path.isdir(name) and not os.path.islink(name):
            os.chmod(name, stat.S_IRWXU)
            shutil.rmtree(name)
        else:
            os.unlink(name)

    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    shutil.rmtree(path, onerror=retry)
