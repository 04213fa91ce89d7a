"""Search for a password where a build may have kept it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

#: Of a larger file, which has no text, only this much is searched.
_READ_LIMIT = 4 << 20


def find_files_with(text: str, since: float, *roots: Path) -> list[Path]:
    """Return the files in ``roots`` that contain ``text`` and changed since a Unix time.

    The home of all tests is one of ``roots``: other tests remove files of it meanwhile, and as an
    ordinary user builds keep files of other ids in it, which only the root of a user namespace can
    read.
    """
    command = [sys.executable, __file__, text, str(since), *map(str, roots)]
    if os.geteuid() != 0:
        command = ["unshare", "--map-auto", "--map-root-user", "--user", *command]
    result = subprocess.run(command, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode(errors="replace")
    return [Path(os.fsdecode(name)) for name in result.stdout.split(b"\0")[:-1]]


def _search_tree(root: str, text: bytes, since: float) -> None:
    """Print the files of a tree that contain ``text``, each with a NUL after it."""
    for directory, _, names in os.walk(root, onerror=_raise_unless_gone):
        for name in names:
            path = Path(directory, name)
            try:
                status = path.lstat()
                # Files of layers have a fixed time of modification.
                if not stat.S_ISREG(status.st_mode) or status.st_ctime < since:
                    continue
                with path.open("rb") as file:
                    if text in file.read(_READ_LIMIT):
                        sys.stdout.buffer.write(os.fsencode(path) + b"\0")
            except FileNotFoundError:
                continue


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


if __name__ == "__main__":
    for tree in sys.argv[3:]:
        _search_tree(tree, os.fsencode(sys.argv[1]), float(sys.argv[2]))
