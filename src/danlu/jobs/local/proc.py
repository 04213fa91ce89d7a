"""Processes as the kernel shows them (proc(5)): whose they are, what they use."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from danlu.jobs.local.types import Usage

__all__ = ["descendants", "kill", "members", "usage"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def children(process: int) -> list[int]:
    """The children of a process, of all its threads."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children", "rb") as file:
                found += [int(word) for word in file.read().split()]
    return found


def descendants(process: int) -> list[int]:
    """All that descend from a process, parents before children; not itself."""
    found = children(process)
    for one in found:
        found += children(one)
    return found


def members(leader: int, mark: bytes, *, orphanage: int | None) -> list[int]:
    """The living processes of a program whose first process was ``leader``.

    Those of its session or process group, those that have ``mark`` in their environment (none
    where it is empty), and what descends from either. Looked for among ``leader`` and its
    descendants, and among the children of ``orphanage`` that are not ours (the process that gets
    those whose parent died; None: among all processes).
    """
    orphans = _processes() if orphanage is None else children(orphanage)
    ours = {os.getpid(), leader}
    found = {leader, *descendants(leader)} if _alive(leader) else set()
    for one in orphans:
        if one not in ours and one not in found and _belongs(one, leader, mark):
            found |= {one, *descendants(one)}
    return sorted(one for one in found if _alive(one))


def _belongs(process: int, leader: int, mark: bytes) -> bool:
    fields = _stat(process)
    if fields and leader in (int(fields[2]), int(fields[3])):
        return True
    if not mark:
        return False
    try:
        with open(f"/proc/{process}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def kill(processes: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to those that are still there."""
    for one in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(one, number)


def usage(processes: Iterable[int]) -> Usage | None:
    """What these processes use, children that ended included; None where all are gone."""
    ticks, pages, seen = 0, 0, False
    for one in processes:
        fields = _stat(one)
        if fields:
            seen = True
            ticks += sum(int(field) for field in fields[11:15])
            pages += int(fields[21])
    return Usage(ticks / _TICKS, pages * _PAGE) if seen else None


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _alive(process: int) -> bool:
    fields = _stat(process)
    return bool(fields) and fields[0] not in (b"Z", b"X")


def _stat(process: int) -> list[bytes]:
    """The fields of ``/proc/PID/stat`` from the state on; empty where the process has gone."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            # The name, in parentheses, may hold anything.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
