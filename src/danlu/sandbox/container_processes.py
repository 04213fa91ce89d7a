"""The processes of a container as the host sees them: keeper, runtime, container init, children.

The keeper (``unshare``) waits for the runtime, which is the first process of a pid namespace; the
container's init, below it, has another pid namespace.
"""

from __future__ import annotations

import contextlib
import os

from danlu.util.process_tree import child_pids, send_signal


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
    send_signal(child_pids(keeper)[:1] or [keeper])


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
