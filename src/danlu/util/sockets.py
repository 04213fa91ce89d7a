"""Unix sockets at paths of any length."""

from __future__ import annotations

import os
from contextlib import contextmanager

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def short_socket_path(path: str | os.PathLike[str]) -> Iterator[str]:
    """Provide a short path for a socket: an address holds 107 bytes, and paths may be longer.

    The path is valid inside the block, in this process only.
    """
    parent, name = os.path.split(path)
    directory = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{name}"
    finally:
        os.close(directory)
