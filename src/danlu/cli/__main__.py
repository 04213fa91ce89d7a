"""The entry point. It imports the program late, so that Ctrl-C during imports is handled."""

from __future__ import annotations

import gc
import os
import sys
import time

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# A short run creates many objects and drops few: collecting cycles every 700 allocations (the
# default) takes 5 % of its time.
_GC_THRESHOLD = 100_000

#: Ctrl-C again while the event loop stops leaves its idle worker threads, which never end.
_INTERRUPTED_CODES = (130, 143)
_INTERRUPTED_WAIT_SECONDS = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run danlu and return the exit code.

    Without ``arguments``, uses those of this process and exits it.
    """
    try:
        if arguments is None:
            answered = _answer_repeated_command(sys.argv[1:])
            if answered is not None:
                _exit_process(answered)
                return answered
            gc.set_threshold(_GC_THRESHOLD, 20, 20)
        from danlu.cli import program
    except KeyboardInterrupt:
        # As the program does once it is loaded.
        print("interrupted", file=sys.stderr)
        return 130
    if arguments is not None:
        return program.run(list(arguments))
    try:
        code = program.run(sys.argv[1:])
        program.let_interrupts_end()
    except KeyboardInterrupt:
        code = 130
    if code in _INTERRUPTED_CODES:
        _wait_for_threads(_INTERRUPTED_WAIT_SECONDS)
    _exit_process(code, abandon_threads=code in _INTERRUPTED_CODES)
    return code


def _answer_repeated_command(arguments: Sequence[str]) -> int | None:
    """Return the exit code of a command that needs nothing but its stamp; None for others."""
    from danlu.cli.command_stamp import answer_repeated_build

    if answer_repeated_build(arguments):
        return 0
    if not {"up", "exec", "ssh"}.isdisjoint(arguments[:2]):
        from danlu.cli.environment_stamp import answer_environment_command

        return answer_environment_command(arguments)
    return None


def _wait_for_threads(seconds: float) -> None:
    """Wait until no thread would keep the interpreter from exiting, at most ``seconds``."""
    threading = sys.modules.get("threading")
    if threading is None:
        return
    deadline = time.monotonic() + seconds
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join(max(deadline - time.monotonic(), 0))


def _exit_process(code: int, *, abandon_threads: bool = False) -> None:
    """Exit without finalizing the interpreter, which takes as long as a short command.

    Returns if that would lose something: unwritten output, a profile, or a running thread, unless
    threads are abandoned.
    """
    if sys.getprofile() is not None:
        return
    threading = sys.modules.get("threading")
    if not abandon_threads and threading is not None and threading.active_count() > 1:
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
