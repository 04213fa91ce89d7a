"""Give up transfers that are so slow that they would never end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

from danlu.errors import TemporaryError

#: With a limit of 60 seconds about 1 kB a second, like dnf's ``minrate``.
MIN_TRANSFER = 1 << 16


@contextmanager
def require_progress(host: str, seconds: float) -> Iterator[Callable[[int], None]]:
    """Yield a function that must be called with each number of bytes that ``host`` sends.

    Raises :class:`TemporaryError`, and cancels the block, if less than :data:`MIN_TRANSFER` bytes
    arrive in ``seconds``; for the first of them, with the connection and the login, there is twice
    the time. A server that sends a byte now and then never runs into the timeout of a connection.
    """
    received = 0
    with anyio.CancelScope(deadline=anyio.current_time() + 2 * seconds) as scope:

        def count(size: int) -> None:
            nonlocal received
            received += size
            if received >= MIN_TRANSFER:
                received = 0
                scope.deadline = anyio.current_time() + seconds

        yield count
    if scope.cancelled_caught:
        raise TemporaryError(
            f"{host} is too slow: less than {MIN_TRANSFER >> 10} KiB in {seconds:g} seconds",
            hint="try again later, or use another mirror or network",
        )
