"""Unix sockets at paths of any length."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_socket_path(path: Path) -> Iterator[str]:
    """Provide a short path for a socket: an address holds 107 bytes, and paths may be longer.

    The path is valid inside the block, in this process only.
    """
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
