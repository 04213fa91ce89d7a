"""The reaper of a job: starts its supervisor, and kills every process left when that ends.

``python -I -S reaper.py DIRECTORY READY LOCK PYTHON [SUBMITTER]``: READY, LOCK and SUBMITTER are
numbers of inherited descriptors: the pipe on which the supervisor reports that it has started, the
job's lock (held), and a pidfd of the process that the job ends with, if any.

The reaper is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): the kernel reparents every orphaned
process of the job to it, so all of them stay its descendants. It lives as long as the job and
therefore stands alone and imports as little as possible. The lock is released when both the reaper
and the supervisor are gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.01


def main(directory: str, ready: int, lock: int, python: str, *submitter: int) -> None:
    """Watch over one job from a new session; the calling process exits immediately."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    supervisor = _spawn_supervisor(directory, python, ready, lock, *submitter)
    for descriptor in (ready, *submitter):
        os.close(descriptor)
    _become_subreaper()
    # Stopping the job is up to the supervisor.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(supervisor, number))
    while os.wait()[0] != supervisor:
        pass
    kill_descendants()


def _become_subreaper() -> None:
    # ctypes is slow to import, so the supervisor is started first: it has no children yet.
    import ctypes

    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise SystemExit("PR_SET_CHILD_SUBREAPER is not supported (requires Linux 3.4)")


def _spawn_supervisor(directory: str, python: str, *descriptors: int) -> int:
    module = "danlu.jobs.local.supervisor"
    # -P: a module of the current directory must not be imported instead of one of danlu's.
    command = [python, "-P", "-m", module, directory, *map(str, descriptors)]
    return os.posix_spawn(python, command, os.environ)


def kill_descendants() -> None:
    """Kill all descendants of this process, repeatedly, until none is left."""
    while pids := _child_pids(os.getpid()):
        for pid in pids:
            _kill_tree(pid)
        _reap_zombies()
        time.sleep(_POLL_SECONDS)


def _kill_tree(process: int) -> None:
    # Kill the parent first, so that it cannot start more children.
    pids = _child_pids(process)
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    for pid in pids:
        _kill_tree(pid)


def _reap_zombies() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _child_pids(process: int) -> list[int]:
    pids: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                pids += [int(word) for word in file.read().split()]
    return pids


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], *map(int, sys.argv[5:]))
