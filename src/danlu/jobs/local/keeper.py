"""The keeper of a job: starts its supervisor, and ends all that it leaves however it ended.

``python -I -S keeper.py DIRECTORY READY LOCK PYTHON [TIE]``: READY is the number of the descriptor
on which the supervisor says that it is there, LOCK that of the job's lock, which is held, and TIE
that of the process that the job is tied to, if any. It stands alone and imports next to nothing,
for it lives as long as the job: the kernel gives it every process of the job that lost its parent
(prctl(2), PR_SET_CHILD_SUBREAPER), so that all of them are its descendants to the end. The lock is
free when both are gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

__all__ = ["main"]

_PR_SET_CHILD_SUBREAPER = 36
_ROUND = 0.01


def main(directory: str, ready: int, lock: int, python: str, *tie: int) -> None:
    """Keep one job, in a session of its own; the process that called this ends at once."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    supervisor = _started(directory, python, ready, lock, *tie)
    for one in (ready, *tie):
        os.close(one)
    _adopt_orphans()
    # An order to end is the supervisor's to carry out.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(supervisor, number))
    while os.wait()[0] != supervisor:
        pass
    end_descendants()


def _adopt_orphans() -> None:
    # It takes a while to import, and the supervisor has no children yet.
    import ctypes

    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise SystemExit("the kernel knows no PR_SET_CHILD_SUBREAPER (Linux 3.4)")


def _started(directory: str, python: str, *descriptors: int) -> int:
    module = "danlu.jobs.local.supervisor"
    command = [python, "-P", "-m", module, directory, *map(str, descriptors)]
    return os.posix_spawn(python, command, os.environ)


def end_descendants() -> None:
    """Kill what descends from this process, until nothing does."""
    while processes := _children(os.getpid()):
        for process in processes:
            _kill_tree(process)
        _reap()
        time.sleep(_ROUND)


def _kill_tree(process: int) -> None:
    # The parent first: then it starts no more of them.
    below = _children(process)
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    for one in below:
        _kill_tree(one)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _children(process: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                found += [int(word) for word in file.read().split()]
    return found


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], *map(int, sys.argv[5:]))
