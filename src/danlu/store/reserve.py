"""A little disk space kept back, so that a full disk can still be cleaned.

Removing something begins by writing that down in the index, which takes room.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from danlu.store.core import Core

__all__ = ["release", "take"]

_BYTES = 4 << 20


def take(core: Core) -> None:
    """Keep the space back, where there is any."""
    path = core.root / "reserve"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        os.posix_fallocate(descriptor, 0, _BYTES)
    except OSError:
        with suppress(OSError):
            path.unlink()
    finally:
        os.close(descriptor)


def release(core: Core) -> bool:
    """Give the space back; whether there was any."""
    try:
        (core.root / "reserve").unlink()
    except OSError:
        return False
    return True
