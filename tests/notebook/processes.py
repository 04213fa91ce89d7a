"""Processes in ``/proc``: which are alive, and which have a working directory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["find_processes_in", "list_living_processes", "until"]


def list_living_processes(pids: set[int]) -> set[int]:
    """Return the processes that run, without zombies."""
    return {pid for pid in pids if _read_state(pid) not in ("", "Z", "X")}


def find_processes_in(place: Path) -> set[int]:
    """Return the processes whose command names ``place`` or something in it."""
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return {pid for pid in list_living_processes(pids) if os.fsencode(place) in _read_command(pid)}


def until(done: Callable[[], bool], *, limit: float) -> None:
    """Wait for ``done`` at most ``limit`` seconds."""
    end = time.monotonic() + limit
    while not done():
        assert time.monotonic() < end, f"not within {limit} s"
        time.sleep(0.05)


def _read_command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _read_state(pid: int) -> str:
    """The letter of a process's state (proc(5)); nothing for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
