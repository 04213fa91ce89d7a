"""Remove the directory of a job, in which containers may have left files of other users.

To an ordinary user those belong to subordinate ids: a process in a user namespace removes them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from danlu.errors import OutsideError
from danlu.sandbox import userns
from danlu.util.files import remove_tree
from danlu.util.paths import Paths


def remove_directory(directory: Path, paths: Paths) -> None:
    """Remove a directory; raises :class:`OutsideError` if that is impossible."""
    try:
        remove_tree(directory)
    except PermissionError:
        # Not a fork: the caller has threads.
        places = (directory, paths.config, paths.data, paths.state)
        command = (sys.executable, "-P", "-m", __name__, *map(str, places))
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            reason = result.stderr.strip().rpartition("\n")[2]
            raise OutsideError(f"cannot remove {directory}: {reason}") from None


if __name__ == "__main__":
    _directory, _config, _data, _state = map(Path, sys.argv[1:])
    userns.enter(Paths(config=_config, data=_data, state=_state))
    remove_tree(_directory)
