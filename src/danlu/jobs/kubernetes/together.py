"""Several questions at once, none of which outlives the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

__all__ = ["together"]

T = TypeVar("T")


async def together(questions: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The answers in order; the first failure is raised, when all others have been given up.

    ``asyncio.gather`` leaves them running: programs that they started (credentials of a kubeconfig)
    are then still there when the event loop closes, which waits for them for ever.
    """
    tasks = [asyncio.ensure_future(one) for one in questions]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
