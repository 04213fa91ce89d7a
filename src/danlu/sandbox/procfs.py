"""Processes as the kernel shows them (proc(5)): ownership, resource usage."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from danlu.sandbox.types import ResourceUsage
from danlu.util.process_tree import child_pids, list_descendants

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


def boot_time() -> datetime:
    """Return when this machine was started."""
    stat = Path("/proc/stat").read_bytes()
    seconds = int(stat.partition(b"\nbtime ")[2].split(None, 1)[0])
    return datetime.fromtimestamp(seconds, UTC)


def find_processes(leader: int, mark: bytes, *, orphanage: int | None) -> list[int]:
    """Return the living processes of a program whose first process was ``leader``.

    These are the processes in its session or process group, those with ``mark`` in their
    environment (ignored if empty), and the descendants of either. The search covers ``leader``,
    its descendants, and the children of ``orphanage``, the process that inherits those whose
    parent died; None searches all processes.
    """
    orphans = _all_pids() if orphanage is None else child_pids(orphanage)
    excluded = {os.getpid(), leader}
    pids = {leader, *list_descendants(leader)} if _is_alive(leader) else set()
    for pid in orphans:
        if pid not in excluded and pid not in pids and _belongs_to(pid, leader, mark):
            pids |= {pid, *list_descendants(pid)}
    return sorted(pid for pid in pids if _is_alive(pid))


def _belongs_to(process: int, leader: int, mark: bytes) -> bool:
    fields = _read_stat(process)
    if fields and leader in (int(fields[2]), int(fields[3])):  # process group, session
        return True
    if not mark:
        return False
    try:
        with open(f"/proc/{process}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def measure_usage(processes: Iterable[int]) -> ResourceUsage | None:
    """Return what the processes and their reaped children use; None if all are gone."""
    ticks, pages, alive = 0, 0, False
    for pid in processes:
        fields = _read_stat(pid)
        if fields:
            alive = True
            ticks += sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime
            pages += int(fields[21])  # rss
    return ResourceUsage(ticks / _TICKS_PER_SECOND, pages * _PAGE_SIZE) if alive else None


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _is_alive(process: int) -> bool:
    fields = _read_stat(process)
    return bool(fields) and fields[0] not in (b"Z", b"X")


def _read_stat(process: int) -> list[bytes]:
    """Return the fields of ``/proc/PID/stat`` from the state on; empty if the process is gone."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            # The command name comes first, in parentheses, and may itself contain any character.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def read_command(process: int) -> str:
    """Return the command line of a process; empty if it is gone."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            words = file.read().rstrip(b"\0").decode(errors="replace")
            return words.replace("\0", " ").replace("\n", " ")
    except OSError:
        return ""


def find_namespace_members(process: int) -> list[int]:
    """Return the processes in the PID namespace of ``process``, itself included."""
    try:
        namespace = os.stat(f"/proc/{process}/ns/pid").st_ino
    except OSError:
        return []
    members = []
    for pid in _all_pids():
        with suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/pid").st_ino == namespace:
                members.append(pid)
    return sorted(members)
