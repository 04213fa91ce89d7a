"""Several transfers at once, that fail as one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

__all__ = ["together"]

_T = TypeVar("_T")


async def together(jobs: Iterable[Callable[[], Awaitable[_T]]], *, limit: int) -> list[_T]:
    """The results of ``jobs`` in order, at most ``limit`` of them under way.

    The first failure cancels the others and is raised as it is, not as one of a group.
    """
    results: dict[int, _T] = {}
    limiter = anyio.CapacityLimiter(limit)

    async def work(number: int, job: Callable[[], Awaitable[_T]]) -> None:
        async with limiter:
            results[number] = await job()

    try:
        async with anyio.create_task_group() as group:
            for number, job in enumerate(jobs):
                group.start_soon(work, number, job)
    except BaseExceptionGroup as failures:
        raise _first(failures) from None
    return [results[number] for number in sorted(results)]


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    one = failures.exceptions[0]
    return _first(one) if isinstance(one, BaseExceptionGroup) else one
