"""Processes as the kernel tells of them in ``/proc``: who lives, and who works in a directory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["at_work_in", "living", "until"]


def living(pids: set[int]) -> set[int]:
    """Those that run: not gone, and not only waiting to be reaped."""
    return {pid for pid in pids if _state(pid) not in ("", "Z", "X")}


def at_work_in(place: Path) -> set[int]:
    """Processes whose command names ``place`` or what is in it."""
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return {pid for pid in living(pids) if os.fsencode(place) in _command(pid)}


def until(done: Callable[[], bool], *, limit: float) -> None:
    """Wait for ``done`` at most ``limit`` seconds."""
    end = time.monotonic() + limit
    while not done():
        assert time.monotonic() < end, f"not within {limit} s"
        time.sleep(0.05)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _state(pid: int) -> str:
    """The letter of a process's state (proc(5)); nothing for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
