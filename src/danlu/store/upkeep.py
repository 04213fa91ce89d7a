"""How much the store holds, and when it has reached the disk."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from danlu.store.core import INDEX, SETTLED, Core
from danlu.store.types import Usage

__all__ = ["settle", "usage"]

_SIZES = {
    "layers": "size",
    "blobs": "size",
    "images": "length(config) + length(metadata)",
    "records": "length(key) + length(value)",
}


def usage(core: Core) -> Usage:
    """Bytes by kind."""
    with core.reading():
        sums = {
            kind: int(core.rows(f"SELECT coalesce(sum({size}), 0) FROM {kind}")[0][0])
            for kind, size in _SIZES.items()
        }
    return Usage(**sums, index=sum(_size(path) for path in core.root.glob(f"{INDEX}*")))


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def settle(core: Core) -> None:
    """Write what the file system holds back; trust what was put in before that."""
    with core.reading():
        layers = core.rows("SELECT diff_id, tree FROM layers WHERE boot = ?", (core.boot,))
        blobs = core.rows("SELECT digest FROM blobs WHERE boot = ?", (core.boot,))
    if not layers and not blobs:
        return
    with core.faults:
        _sync(core.root)
    with core.writing() as connection:
        # What was put in meanwhile is not settled by this.
        connection.executemany(
            f"UPDATE layers SET boot = '{SETTLED}' WHERE diff_id = ? AND tree = ?", layers
        )
        connection.executemany(f"UPDATE blobs SET boot = '{SETTLED}' WHERE digest = ?", blobs)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if library.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
