"""The entry point; what it runs is imported late, so that Ctrl-C is clean from the first moment."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run danlu with ``arguments`` and give its exit code.

    Without ``arguments`` they are this process's, which then ends here.
    """
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
