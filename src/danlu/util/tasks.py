"""Run several coroutines at once and fail as one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from danlu.util.exception_groups import unwrap_group

T = TypeVar("T")


async def run_concurrently(
    jobs: Iterable[Callable[[], Awaitable[T]]], *, limit: float = float("inf")
) -> list[T]:
    """Return the results of ``jobs`` in order, running at most ``limit`` of them at a time.

    The first failure cancels the other jobs, waits until they have ended, and is raised unchanged,
    not wrapped in a group. (``asyncio.gather`` would leave the others running: programs that they
    started would then keep the event loop from closing.)
    """
    results: dict[int, T] = {}
    limiter = anyio.CapacityLimiter(limit)

    async def run_job(number: int, job: Callable[[], Awaitable[T]]) -> None:
        async with limiter:
            results[number] = await job()

    try:
        async with anyio.create_task_group() as group:
            for number, job in enumerate(jobs):
                group.start_soon(run_job, number, job)
    except BaseExceptionGroup as failures:
        raise unwrap_group(failures) from None
    return [results[number] for number in sorted(results)]
