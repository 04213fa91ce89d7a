"""Tell whether a program and its children still do anything."""

from __future__ import annotations

import os
import re


def read_activity(process: int) -> tuple[int, int]:
    """Return numbers that change while a process or a descendant of it does anything.

    They are the bytes read and written, pipes and most sockets included (proc(5), io), and whole
    seconds of processor time, so that waking up now and then does not count. Both may also decrease
    when a descendant ends. What cannot be read, because the process has ended, counts as 0.
    """
    transferred = ticks = 0
    for member in list_process_tree(process):
        try:
            with open(f"/proc/{member}/io", "rb") as file:
                transferred += sum(map(int, re.findall(rb"[rw]char: (\d+)", file.read())))
            with open(f"/proc/{member}/stat", "rb") as file:
                user, system = file.read().rpartition(b")")[2].split()[11:13]
        except (OSError, ValueError):
            continue
        ticks += int(user) + int(system)
    return transferred, ticks // os.sysconf("SC_CLK_TCK")


def list_process_tree(process: int) -> list[int]:
    """Return a process and its descendants."""
    found = [process]
    for parent in found:  # grows
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children") as file:
                    found += map(int, file.read().split())
        except OSError:
            continue
    return found
