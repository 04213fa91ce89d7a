"""Children and descendants of a process (proc(5)), and signals to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress


def child_pids(process: int) -> list[int]:
    """Return the process ids of the children of ``process``, of all its threads, oldest first."""
    pids: list[int] = []
    with suppress(OSError):
        # The kernel lists children per thread: each belongs to the thread that forked it.
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children", "rb") as file:
                pids += [int(word) for word in file.read().split()]
    return sorted(pids)


def list_descendants(process: int) -> list[int]:
    """Return all descendants of a process, parents before children, without the process itself."""
    pids = child_pids(process)
    # The list grows while it is walked, which makes this a breadth-first search.
    for pid in pids:
        pids += child_pids(pid)
    return pids


def send_signal(processes: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to the processes that still exist and that this account may signal."""
    for pid in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
