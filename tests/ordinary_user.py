"""Run a command as an ordinary user with subordinate ids, in a mount namespace of its own (root).

    .venv/bin/python -m tests.ordinary_user COMMAND [ARGUMENT ...]

The user can read the checkout and its Python, wherever they are, and has a new home directory.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.conftest import remove_tree
from tests.sandbox.namespace_process import become_ordinary


def main(command: list[str]) -> int:
    """Run the command and return its exit code."""
    # Not in /tmp, which may be memory.
    place = Path(tempfile.mkdtemp(prefix="danlu-user-", dir="/var/tmp"))
    try:
        child = os.fork()
        if child == 0:
            _run_program(place, command)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        remove_tree(place)


def _run_program(home: Path, command: list[str]) -> None:
    try:
        become_ordinary(home)
        runtime = home / "run"
        runtime.mkdir(mode=0o700)
        # Root's settings name directories that the user cannot write to.
        own = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        os.execvpe(command[0], command, {**own, "XDG_RUNTIME_DIR": str(runtime)})
    except OSError as error:
        print(f"{command[0]}: {error}", file=sys.stderr)
    finally:
        os._exit(127)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
