"""The processes of a container as the host sees them: keeper, runtime, container init, children.

The keeper (``unshare``) waits for the runtime, which is the first process of a pid namespace; the
container's init, below it, has another pid namespace.
"""

from __future__ import annotations

import contextlib
import os
import signal


def child_pids(process: int) -> list[int]:
    """Return the process ids of the children of ``process``, of all its threads, oldest first."""
    pids: list[int] = []
    with contextlib.suppress(OSError):
        # The kernel lists children per thread: each belongs to the thread that forked it.
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                pids += [int(word) for word in file.read().split()]
    return sorted(pids)


def list_descendants(process: int) -> list[int]:
    """Return the process ids of the children of ``process``, of their children and so on."""
    found: list[int] = []
    pending = child_pids(process)
    while pending:
        found += pending
        pending = [child for parent in pending for child in child_pids(parent)]
    return found


def find_container_init(keeper: int) -> int | None:
    """Return the container's first process, or None if it has not started."""
    runtime = child_pids(keeper)
    first = child_pids(runtime[0]) if runtime else []
    return first[0] if first else None


def is_program_running(keeper: int) -> bool:
    """Return whether the container's first process is already the program and not the runtime."""
    first = find_container_init(keeper)
    if first is None:
        return False
    arguments = read_cmdline(first)
    if not arguments:
        return False
    # It may end at any moment.
    children = child_pids(keeper)
    runtime = read_cmdline(children[0]) if children else []
    # runc executes itself again (`/usr/sbin/runc init`) before the program; crun only forks.
    is_stage = os.path.basename(arguments[0]) == "runc" and arguments[1:2] == ["init"]
    return any(arguments[:1]) and arguments != runtime and not is_stage


def kill_container(keeper: int) -> None:
    """Kill the runtime and with it everything in its namespace; the keeper exits when all are gone.

    Killing the keeper would have the same effect, but then nothing would wait for the others.
    """
    runtime = child_pids(keeper)
    send_signal(runtime[0] if runtime else keeper, signal.SIGKILL)


def handles_signal(process: int, number: int) -> bool:
    """Return whether ``process`` handles or explicitly ignores signal ``number`` (proc(5))."""
    masks = 0
    with contextlib.suppress(OSError), open(f"/proc/{process}/status") as file:
        for line in file:
            if line.startswith(("SigCgt:", "SigIgn:")):
                masks |= int(line.split()[1], 16)
    # The lowest bit is signal 1 (proc(5), SigCgt and SigIgn).
    return bool(masks >> (number - 1) & 1)


def read_cmdline(process: int) -> list[str]:
    """Return the arguments of ``process``, or nothing if it has exited."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return file.read().decode(errors="replace").split("\0")
    except OSError:
        return []


def send_signal(process: int, number: int) -> None:
    """Send a signal; do nothing if the process has exited."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)
