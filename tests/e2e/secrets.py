"""Search for a password where a build may have kept it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: Of a larger file, which has no text, only this much is searched.
_READ_LIMIT = 4 << 20


def find_files_with(text: str, since: float, *roots: Path) -> list[Path]:
    """Return the files in ``roots`` that contain ``text`` and changed since a Unix time.

    The home of all tests is one of ``roots``: other tests remove files of it meanwhile.
    """
    results = []
    for root in roots:
        for directory, _, names in os.walk(root):
            for name in names:
                path = Path(directory, name)
                try:
                    status = path.lstat()
                    # Files of layers have a fixed time of modification.
                    if not stat.S_ISREG(status.st_mode) or status.st_ctime < since:
                        continue
                    with path.open("rb") as file:
                        if text.encode() in file.read(_READ_LIMIT):
                            results.append(path)
                except FileNotFoundError:
                    continue
    return results
