"""The processes of a sandbox, seen from outside: keeper, runtime, first process, its children.

The keeper (``unshare``) waits for the runtime, which is the first process of a process namespace;
below it the container's first process has a namespace of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal

__all__ = ["children", "heeds", "kill_inside", "program_inside", "runs", "send", "words"]


def children(process: int) -> list[int]:
    """The process ids of the children of ``process``, of all its threads, oldest first."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                found += [int(word) for word in file.read().split()]
    return sorted(found)


def program_inside(keeper: int) -> int | None:
    """The container's first process, or None before there is one."""
    runtime = children(keeper)
    first = children(runtime[0]) if runtime else []
    return first[0] if first else None


def runs(keeper: int) -> bool:
    """Whether the container's first process is the program already, and no longer the runtime."""
    first = program_inside(keeper)
    if first is None:
        return False
    own = words(first)
    runtime = words(children(keeper)[0]) if children(keeper) else []
    # runc executes itself anew (`runc init`) before the program; crun only forks.
    return any(own[:1]) and own != runtime and own[:2] != ["runc", "init"]


def kill_inside(keeper: int) -> None:
    """Kill the runtime and, with it, all in its namespace; the keeper ends when all are gone.

    Killing the keeper would do too, but then nobody waits for the others' end.
    """
    runtime = children(keeper)
    send(runtime[0] if runtime else keeper, signal.SIGKILL)


def heeds(process: int, number: int) -> bool:
    """Whether ``process`` handles signal ``number``, or ignores it on purpose (proc(5))."""
    masks = 0
    with contextlib.suppress(OSError), open(f"/proc/{process}/status") as file:
        for line in file:
            if line.startswith(("SigCgt:", "SigIgn:")):
                masks |= int(line.split()[1], 16)
    return bool(masks >> (number - 1) & 1)


def words(process: int) -> list[str]:
    """The argument vector of ``process``; empty where it has gone."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return file.read().decode(errors="replace").split("\0")
    except OSError:
        return []


def send(process: int, number: int) -> None:
    """Send a signal; nothing where the process has gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)
