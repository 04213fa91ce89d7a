"""Coroutines that run at the same time and fail as one."""

import asyncio
from functools import partial

import anyio
import pytest

from danlu.util.tasks import run_concurrently


def test_results_come_in_order_whatever_ends_first() -> None:
    async def answer(number: int) -> int:
        for _ in range(3 - number):
            await anyio.lowlevel.checkpoint()
        return number

    jobs = [partial(answer, number) for number in range(3)]
    assert asyncio.run(run_concurrently(jobs)) == [0, 1, 2]


def test_first_failure_cancels_the_others_and_waits_for_them() -> None:
    result = []

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            result.append("wait")

    async def fail() -> None:
        await anyio.lowlevel.checkpoint()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(run_concurrently([wait, fail]))
    assert result == ["wait"]
