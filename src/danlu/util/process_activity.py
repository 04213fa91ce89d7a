"""Tell whether a program and its children still do anything, and give up on one that does not."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from danlu.errors import TemporaryError
from danlu.util.process_tree import list_descendants, send_signal

#: How long (seconds) a program that nobody watches may do nothing. Longer than the programs
#: themselves wait for a lock or a server.
STUCK_SECONDS = 900.0

_POLL_SECONDS = 1.0


def run_program(
    args: Sequence[str],
    *,
    input: bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stuck_seconds: float = STUCK_SECONDS,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program with nobody in front of it and collect its output, whatever its exit code is.

    Raises :class:`TemporaryError` if the program and its children do nothing for
    ``stuck_seconds``, after killing them, and :class:`FileNotFoundError` if it does not exist.
    """
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    process = subprocess.Popen(
        args, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=cwd
    )
    before, since = (-1, -1), time.monotonic()
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                output, errors = process.communicate(input, timeout=_POLL_SECONDS)
                return subprocess.CompletedProcess(args, process.returncode, output, errors)
            now = read_activity(process.pid)
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > stuck_seconds:
                raise stuck_error(args[0], stuck_seconds)
    except BaseException:
        kill_process_tree(process.pid)
        process.wait()
        raise
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def stuck_error(program: str, seconds: float) -> TemporaryError:
    """Return the error for a program that did nothing for so long."""
    return TemporaryError(
        f"{os.path.basename(program)} did nothing for {seconds / 60:.0f} minutes",
        hint="check the network and the disk, and try again",
    )


def kill_process_tree(process: int) -> None:
    """Kill a process and its descendants."""
    send_signal([process, *list_descendants(process)])


def read_activity(process: int) -> tuple[int, int]:
    """Return numbers that change while a process or a descendant of it does anything.

    They are the bytes read and written, pipes and most sockets included (proc(5), io), and whole
    seconds of processor time, so that waking up now and then does not count. Both may also decrease
    when a descendant ends. What cannot be read, because the process has ended, counts as 0.
    """
    transferred = ticks = 0
    for member in (process, *list_descendants(process)):
        try:
            with open(f"/proc/{member}/io", "rb") as file:
                transferred += sum(map(int, re.findall(rb"[rw]char: (\d+)", file.read())))
            with open(f"/proc/{member}/stat", "rb") as file:
                user, system = file.read().rpartition(b")")[2].split()[11:13]
        except (OSError, ValueError):
            continue
        ticks += int(user) + int(system)
    return transferred, ticks // os.sysconf("SC_CLK_TCK")
