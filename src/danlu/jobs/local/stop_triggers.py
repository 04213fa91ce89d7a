"""Triggers outside a job's own rules that stop it: signals, its submitter's exit, its removal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import anyio

SUBMITTER_GONE = "the process that submitted it has exited"

_POLL_SECONDS = 1.0


async def on_signal(stop: Callable[[], None]) -> None:
    """Call ``stop`` on SIGTERM: sent by a user, at shutdown, or because the reaper died."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
        async for _ in received:
            stop()


async def on_submitter_exit(submitter: int, stop: Callable[[str], None]) -> None:
    """Call ``stop`` when the process of the pidfd ``submitter`` exits.

    The submitter opened it itself (pidfd_open(2)), so it is valid in any namespace, and a later
    process with the same number is not mistaken for it.
    """
    await anyio.wait_readable(submitter)
    stop(SUBMITTER_GONE)


async def on_directory_removal(lock: int, stop: Callable[[], None]) -> None:
    """Call ``stop`` when the job's directory was removed: its open lock file was unlinked."""
    while not is_gone(lock):
        await anyio.sleep(_POLL_SECONDS)
    stop()


def is_gone(lock: int) -> bool:
    """Return whether the open file ``lock`` has been unlinked."""
    return os.fstat(lock).st_nlink == 0
