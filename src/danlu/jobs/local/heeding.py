"""What ends a job beside its rules and orders: signals, the end of who submitted it, its removal.

Each of the functions waits for ever for one of them, and says what came of it by calling back.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import anyio

__all__ = ["is_removed", "removal", "signals", "submitter"]

GONE = "the process that submitted it is gone"

_LOOK = 1.0


async def signals(stop: Callable[[], None]) -> None:
    """SIGTERM comes from a person, from the machine's shutdown, or when the keeper died."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
        async for _ in received:
            stop()


async def submitter(tie: int, stop: Callable[[str], None]) -> None:
    """``tie`` is a descriptor of the process (pidfd_open(2)), which it opened itself.

    So no other process is taken for it that has its number later, and in whichever namespace we
    are it is the same one.
    """
    await anyio.wait_readable(tie)
    stop(GONE)


async def removal(lock: int, stop: Callable[[], None]) -> None:
    """The job's directory was removed by somebody: its open lock has no name any more."""
    while not is_removed(lock):
        await anyio.sleep(_LOOK)
    stop()


def is_removed(lock: int) -> bool:
    """Whether the open file ``lock`` has no name any more."""
    return os.fstat(lock).st_nlink == 0
