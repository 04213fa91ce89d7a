"""The entry point; what it runs is imported late, so that Ctrl-C is clean from the first moment."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Sequence

__all__ = ["main"]

# A short run makes many objects, modules first, and drops few: looking for cycles among them every
# 700 (the default) costs one part in twenty of it.
_OBJECTS_BETWEEN_COLLECTIONS = 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run danlu with ``arguments`` and give its exit code.

    Without ``arguments`` they are this process's, which then ends here.
    """
    if arguments is None:
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 20, 20)
    try:
        from danlu.cli import program
    except KeyboardInterrupt:
        return 130
    if arguments is not None:
        return program.run(list(arguments))
    code = program.run(sys.argv[1:])
    _leave(code)
    return code


def _leave(code: int) -> None:
    """End the process at once: taking the interpreter apart costs as long as a short command.

    Where that would lose something (output that cannot be written, a thread at work), it returns.
    """
    if threading.active_count() > 1:
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
