"""The claims of client-go's own tests of its work queue (util/workqueue), and metrics."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.kube.ratelimit import RateLimiter
from danlu.kube.workqueue import ShutDown, WorkQueue
from tests.fakes.kubernetes import VirtualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def queue(clock: VirtualClock) -> WorkQueue[str]:
    return WorkQueue(clock=clock)


async def get_item(queue: WorkQueue[str]) -> str:
    with anyio.fail_after(60):
        return await queue.get()


async def test_every_key_is_processed_and_never_concurrently() -> None:
    queue: WorkQueue[int] = WorkQueue()
    busy: set[int] = set()
    result: Counter[int] = Counter()

    async def work() -> None:
        while True:
            try:
                key = await queue.get()
            except ShutDown:
                return
            assert key not in busy
            busy.add(key)
            await anyio.sleep(0)
            await anyio.sleep(0)
            busy.discard(key)
            result[key] += 1
            queue.done(key)

    async def add_items(first: int) -> None:
        for _ in range(20):
            for key in range(first, first + 10):
                queue.add(key)
                await anyio.sleep(0)

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(work)
        async with anyio.create_task_group() as producers:
            for first in (0, 5, 10):
                producers.start_soon(add_items, first)
        queue.shut_down()
        queue.add(99)
    assert set(result) == set(range(20))
    assert not queue.processing


async def test_a_key_that_waits_is_not_added_again(queue: WorkQueue[str]) -> None:
    for key in ("foo", "bar", "foo"):
        queue.add(key)
    assert len(queue) == 2
    assert [await get_item(queue), await get_item(queue)] == ["foo", "bar"]


async def test_a_key_added_while_it_is_processed_is_requeued_when_done(
    queue: WorkQueue[str],
) -> None:
    queue.add("foo")
    key = await get_item(queue)
    queue.add("foo")
    queue.add("foo")
    assert len(queue) == 0
    queue.done(key)
    assert len(queue) == 1
    assert await get_item(queue) == "foo"
    queue.done("foo")
    assert len(queue) == 0


async def test_a_key_that_is_done_does_not_come_again(queue: WorkQueue[str]) -> None:
    queue.add("foo")
    queue.done(await get_item(queue))
    assert len(queue) == 0


async def test_keys_come_in_the_order_in_which_they_were_added(queue: WorkQueue[str]) -> None:
    for key in "cab":
        queue.add(key)
    assert [await get_item(queue) for _ in "cab"] == ["c", "a", "b"]


async def test_a_waiting_worker_is_woken(queue: WorkQueue[str]) -> None:
    results: list[str] = []

    async def wait() -> None:
        results.append(await get_item(queue))

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        queue.add("a")
        queue.add("b")
    assert sorted(results) == ["a", "b"]


async def test_a_queue_that_is_shut_down_returns_ready_keys_and_accepts_no_more(
    queue: WorkQueue[str],
) -> None:
    queue.add("a")
    queue.add_after("b", 5)
    queue.shut_down()
    queue.add("c")
    queue.add_after("d", 0)
    assert await get_item(queue) == "a"
    with pytest.raises(ShutDown):
        await get_item(queue)
    assert queue.waiting_count == 0


async def test_shutting_down_wakes_all_waiters(queue: WorkQueue[str]) -> None:
    result = 0

    async def wait() -> None:
        nonlocal result
        with pytest.raises(ShutDown):
            await get_item(queue)
        result += 1

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        queue.shut_down()
    assert result == 3


async def test_draining_waits_for_keys_in_processing(queue: WorkQueue[str]) -> None:
    queue.add("foo")
    queue.add("bar")
    first, second = await get_item(queue), await get_item(queue)
    drained = False

    async def drain() -> None:
        nonlocal drained
        with anyio.fail_after(60):
            await queue.drain()
        drained = True

    async with anyio.create_task_group() as group:
        group.start_soon(drain)
        await anyio.wait_all_tasks_blocked()
        assert queue.is_shut_down
        queue.done(first)
        await anyio.wait_all_tasks_blocked()
        assert not drained
        queue.done(second)
    assert drained


async def test_draining_waits_for_keys_added_during_processing(
    queue: WorkQueue[str],
) -> None:
    queue.add("foo")
    key = await get_item(queue)
    queue.add("foo")
    async with anyio.create_task_group() as group:
        group.start_soon(queue.drain)
        await anyio.wait_all_tasks_blocked()
        queue.done(key)
        await anyio.wait_all_tasks_blocked()
        queue.done(await get_item(queue))


async def test_a_key_put_off_comes_when_its_time_has_come(
    queue: WorkQueue[str], clock: VirtualClock
) -> None:
    queue.add_after("foo", 0.050)
    assert len(queue) == 0
    await clock.advance(0.049)
    assert len(queue) == 0
    await clock.advance(0.002)
    assert await get_item(queue) == "foo"
    await clock.advance(10)
    assert len(queue) == 0


async def test_a_key_put_off_twice_comes_once_at_the_sooner_time(
    queue: WorkQueue[str], clock: VirtualClock
) -> None:
    queue.add_after("foo", 0.050)
    queue.add_after("foo", 0.070)
    queue.add_after("bar", 5)
    queue.add_after("bar", 1)
    assert queue.waiting_count == 2
    await clock.advance(0.060)
    queue.done(await get_item(queue))
    await clock.advance(0.020)
    assert len(queue) == 0
    await clock.advance(1)
    queue.done(await get_item(queue))
    await clock.advance(10)
    assert len(queue) == 0
    assert queue.waiting_count == 0


async def test_keys_put_off_come_in_the_order_of_their_times(
    queue: WorkQueue[str], clock: VirtualClock
) -> None:
    for key, seconds in (("c", 3), ("a", 1), ("b", 2)):
        queue.add_after(key, seconds)
    await clock.advance(5)
    assert [await get_item(queue) for _ in "abc"] == ["a", "b", "c"]


async def test_a_zero_delay_adds_immediately(queue: WorkQueue[str]) -> None:
    queue.add_after("a", 0)
    queue.add_after("b", -1)
    assert len(queue) == 2


async def test_one_timer_is_enough(queue: WorkQueue[str], clock: VirtualClock) -> None:
    for number in range(1000):
        queue.add_after(str(number), 1000 - number)
    assert clock.pending_timers == 1
    await clock.advance(2000)
    assert len(queue) == 1000
    assert clock.pending_timers == 0


async def test_failures_wait_longer_each_time(clock: VirtualClock) -> None:
    queue: WorkQueue[str] = WorkQueue(limiter=RateLimiter(0.001, 1000.0, rate=0), clock=clock)
    waits = []
    for _ in range(4):
        queue.add_rate_limited("a")
        wait = clock.next()
        assert wait is not None
        waits.append(wait)
        await clock.advance(wait)
        queue.done(await get_item(queue))
    assert waits == pytest.approx([0.001, 0.002, 0.004, 0.008])
    assert queue.failures("a") == 4
    queue.forget("a")
    assert queue.failures("a") == 0


# -- priorities (the claims of controller-runtime's pkg/controller/priorityqueue)


async def test_a_key_of_a_higher_priority_is_taken_first(queue: WorkQueue[str]) -> None:
    for key, priority in (("foo", 1), ("bar", 2), ("baz", 3), ("ten", 10)):
        queue.add(key, priority=priority)
    assert queue.depths == {0: 0, 1: 1, 2: 1, 3: 1, 10: 1}
    results = [await queue.get_with_priority() for _ in range(4)]
    assert results == [("ten", 10), ("baz", 3), ("bar", 2), ("foo", 1)]


async def test_the_highest_of_several_priorities_counts(queue: WorkQueue[str]) -> None:
    for key, priority in (("foo", 0), ("foo", 1), ("bar", 3), ("bar", 0)):
        queue.add(key, priority=priority)
    assert len(queue) == 2
    assert await queue.get_with_priority() == ("bar", 3)
    assert await queue.get_with_priority() == ("foo", 1)


async def test_a_key_put_off_has_the_soonest_time_and_the_highest_priority(
    queue: WorkQueue[str], clock: VirtualClock
) -> None:
    queue.add_after("foo", 5, priority=1)
    queue.add_after("foo", 2, priority=-1)
    queue.add_after("bar", 1, priority=-1)
    queue.add_after("bar", 9, priority=7)
    await clock.advance(1.5)
    assert await queue.get_with_priority() == ("bar", 7)
    await clock.advance(1)
    assert await queue.get_with_priority() == ("foo", 1)
    await clock.advance(20)
    assert len(queue) == 0


async def test_a_key_added_while_it_is_processed_keeps_its_priority(
    queue: WorkQueue[str],
) -> None:
    queue.add("foo", priority=-100)
    assert await queue.get_with_priority() == ("foo", -100)
    queue.add("foo")
    queue.add("foo", priority=-100)
    queue.done("foo")
    assert await queue.get_with_priority() == ("foo", 0)


async def test_a_worker_waiting_for_a_priority_is_woken_when_a_key_is_raised(
    queue: WorkQueue[str],
) -> None:
    results: list[tuple[str, int]] = []

    async def wait() -> None:
        with anyio.fail_after(60):
            results.append(await queue.get_with_priority(min_priority=0))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        queue.add("foo", priority=-100)
        await anyio.wait_all_tasks_blocked()
        assert not results
        queue.add("foo")
    assert results == [("foo", 0)]


async def test_shutting_down_wakes_waiters_for_a_priority(
    queue: WorkQueue[str],
) -> None:
    queue.add("foo", priority=-100)
    queue.shut_down()
    with pytest.raises(ShutDown):
        await queue.get(min_priority=0)
    assert await get_item(queue) == "foo"


class RecordingQueueMetrics:
    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []

    def on_add(self) -> None:
        self.calls.append(("added", 0.0))

    def on_retry(self) -> None:
        self.calls.append(("retried", 0.0))

    def on_get(self, seconds: float) -> None:
        self.calls.append(("waited", seconds))

    def on_done(self, seconds: float) -> None:
        self.calls.append(("worked", seconds))


async def test_a_queue_reports_to_its_meter(clock: VirtualClock) -> None:
    meter = RecordingQueueMetrics()
    queue: WorkQueue[str] = WorkQueue(clock=clock, meter=meter)
    queue.add("a")
    queue.add("a")
    await clock.advance(2)
    key = await get_item(queue)
    await clock.advance(3)
    assert queue.processing == {"a": 2.0}
    queue.done(key)
    assert meter.calls == [("added", 0.0), ("waited", 2.0), ("worked", 3.0)]


def test_the_exponential_limiter_is_that_of_client_go() -> None:
    limiter = RateLimiter[str](0.001, 1000.0, rate=0)
    assert [limiter.when("one") for _ in range(5)] == [0.001, 0.002, 0.004, 0.008, 0.016]
    assert limiter.failures("one") == 5
    assert [limiter.when("two") for _ in range(2)] == [0.001, 0.002]
    limiter.forget("one")
    assert limiter.failures("one") == 0
    assert limiter.when("one") == 0.001


def test_the_exponential_limiter_has_an_end() -> None:
    limiter = RateLimiter[str](0.001, 1.0, rate=0)
    waits = [limiter.when("one") for _ in range(2000)]
    assert max(waits) == 1.0
    assert waits == sorted(waits)


def test_the_longer_delay_of_a_key_and_of_all_keys_counts() -> None:
    clock = VirtualClock()
    limiter = RateLimiter[str](0.005, 1.0, rate=2.0, burst=1, clock=clock)
    assert limiter.when("a") == 0.005
    assert limiter.when("b") == 0.5
    assert limiter.when("c") == 1.0
    assert limiter.failures("a") == 1
    limiter.forget("a")
    assert limiter.failures("a") == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "after", "limited", "get", "done", "advance"]),
            st.sampled_from("abc"),
            st.floats(0, 3),
        ),
        max_size=60,
    )
)
def test_no_key_is_lost_or_doubled(actions: list[tuple[str, str, float]]) -> None:
    async def play() -> None:
        clock = VirtualClock()
        queue: WorkQueue[str] = WorkQueue(clock=clock)
        owed: set[str] = set()
        busy: list[str] = []
        for action, key, number in actions:
            if action in ("add", "after", "limited"):
                owed.add(key)
                match action:
                    case "add":
                        queue.add(key)
                    case "after":
                        queue.add_after(key, number)
                    case "limited":
                        queue.add_rate_limited(key)
            elif action == "get" and len(queue):
                value = await queue.get()
                assert value not in busy
                busy.append(value)
                owed.discard(value)
            elif action == "done" and busy:
                queue.done(busy.pop(0))
            elif action == "advance":
                await clock.advance(number)
        await clock.advance(5000)
        for key in busy:
            queue.done(key)
        # What was put off before a key was given out may bring it once more: that is allowed.
        remaining = {await queue.get() for _ in range(len(queue))}
        assert owed <= remaining

    anyio.run(play)
