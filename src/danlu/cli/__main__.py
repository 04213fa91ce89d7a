"""The entry point. It imports the program late, so that Ctrl-C during imports is handled."""

from __future__ import annotations

import gc
import os
import signal
import sys

from danlu.cli.build_stamp import answer_repeated_build

# Not typing.TYPE_CHECKING: see danlu.cli.build_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# A short run creates many objects and drops few: collecting cycles every 700 allocations (the
# default) takes 5 % of its time.
_GC_THRESHOLD = 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run danlu and return the exit code.

    Without ``arguments``, uses those of this process and exits it.
    """
    try:
        if arguments is None:
            if answer_repeated_build(sys.argv[1:]):
                _exit_process(0)
                return 0
            gc.set_threshold(_GC_THRESHOLD, 20, 20)
        from danlu.cli import program
    except KeyboardInterrupt:
        return 130
    if arguments is not None:
        return program.run(list(arguments))
    try:
        code = program.run(sys.argv[1:])
        # Everything is cleaned up: Ctrl-C may end the process while it waits for threads.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        return 130
    _exit_process(code)
    return code


def _exit_process(code: int) -> None:
    """Exit without finalizing the interpreter, which takes as long as a short command.

    Returns if that would lose something: unwritten output, or a running thread.
    """
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
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
