"""The claims of client-go's own tests of its work queues (util/workqueue), and ours of metrics."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.kube.ratelimit import Bucket, Exponential, Slowest
from danlu.kube.workqueue import ShutDown, WorkQueue
from danlu.testing.kubernetes import VirtualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def queue(clock: VirtualClock) -> WorkQueue[str]:
    return WorkQueue(clock=clock)


async def taken(queue: WorkQueue[str]) -> str:
    with anyio.fail_after(2):
        return await queue.get()


async def test_every_key_is_worked_on_and_never_twice_at_once() -> None:
    queue: WorkQueue[int] = WorkQueue()
    busy: set[int] = set()
    done: Counter[int] = Counter()

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
            done[key] += 1
            queue.done(key)

    async def produce(first: int) -> None:
        for _ in range(20):
            for key in range(first, first + 10):
                queue.add(key)
                await anyio.sleep(0)

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(work)
        async with anyio.create_task_group() as producers:
            for first in (0, 5, 10):
                producers.start_soon(produce, first)
        queue.shut_down()
        queue.add(99)
    assert set(done) == set(range(20))
    assert not queue.working


async def test_a_key_that_waits_is_not_added_again(queue: WorkQueue[str]) -> None:
    for key in ("foo", "bar", "foo"):
        queue.add(key)
    assert len(queue) == 2
    assert [await taken(queue), await taken(queue)] == ["foo", "bar"]


async def test_a_key_added_while_it_is_worked_on_comes_again_when_done(
    queue: WorkQueue[str],
) -> None:
    queue.add("foo")
    key = await taken(queue)
    queue.add("foo")
    queue.add("foo")
    assert len(queue) == 0
    queue.done(key)
    assert len(queue) == 1
    assert await taken(queue) == "foo"
    queue.done("foo")
    assert len(queue) == 0


async def test_a_key_that_is_done_does_not_come_again(queue: WorkQueue[str]) -> None:
    queue.add("foo")
    queue.done(await taken(queue))
    assert len(queue) == 0


async def test_keys_come_in_the_order_in_which_they_were_added(queue: WorkQueue[str]) -> None:
    for key in "cab":
        queue.add(key)
    assert [await taken(queue) for _ in "cab"] == ["c", "a", "b"]


async def test_who_waits_is_woken(queue: WorkQueue[str]) -> None:
    found: list[str] = []

    async def wait() -> None:
        found.append(await taken(queue))

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        queue.add("a")
        queue.add("b")
    assert sorted(found) == ["a", "b"]


async def test_a_queue_that_is_shut_down_gives_what_it_has_and_takes_no_more(
    queue: WorkQueue[str],
) -> None:
    queue.add("a")
    queue.add_after("b", 5)
    queue.shut_down()
    queue.add("c")
    queue.add_after("d", 0)
    assert await taken(queue) == "a"
    with pytest.raises(ShutDown):
        await taken(queue)
    assert queue.waiting == 0


async def test_shutting_down_wakes_all_who_wait(queue: WorkQueue[str]) -> None:
    ended = 0

    async def wait() -> None:
        nonlocal ended
        with pytest.raises(ShutDown):
            await taken(queue)
        ended += 1

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        queue.shut_down()
    assert ended == 3


async def test_draining_waits_for_what_is_worked_on(queue: WorkQueue[str]) -> None:
    queue.add("foo")
    queue.add("bar")
    first, second = await taken(queue), await taken(queue)
    drained = False

    async def drain() -> None:
        nonlocal drained
        with anyio.fail_after(2):
            await queue.drain()
        drained = True

    async with anyio.create_task_group() as group:
        group.start_soon(drain)
        await anyio.wait_all_tasks_blocked()
        assert queue.closed
        queue.done(first)
        await anyio.wait_all_tasks_blocked()
        assert not drained
        queue.done(second)
    assert drained


async def test_draining_waits_for_what_was_added_while_it_was_worked_on(
    queue: WorkQueue[str],
) -> None:
    queue.add("foo")
    key = await taken(queue)
    queue.add("foo")
    async with anyio.create_task_group() as group:
        group.start_soon(queue.drain)
        await anyio.wait_all_tasks_blocked()
        queue.done(key)
        await anyio.wait_all_tasks_blocked()
        queue.done(await taken(queue))


async def test_a_key_put_off_comes_when_its_time_has_come(
    queue: WorkQueue[str], clock: VirtualClock
) -> None:
    queue.add_after("foo", 0.050)
    assert len(queue) == 0
    await clock.advance(0.049)
    assert len(queue) == 0
    await clock.advance(0.002)
    assert await taken(queue) == "foo"
    await clock.advance(10)
    assert len(queue) == 0


async def test_a_key_put_off_twice_comes_once_at_the_sooner_time(
    queue: WorkQueue[str], clock: VirtualClock
) -> None:
    queue.add_after("foo", 0.050)
    queue.add_after("foo", 0.070)
    queue.add_after("bar", 5)
    queue.add_after("bar", 1)
    assert queue.waiting == 2
    await clock.advance(0.060)
    queue.done(await taken(queue))
    await clock.advance(0.020)
    assert len(queue) == 0
    await clock.advance(1)
    queue.done(await taken(queue))
    await clock.advance(10)
    assert len(queue) == 0
    assert queue.waiting == 0


async def test_keys_put_off_come_in_the_order_of_their_times(
    queue: WorkQueue[str], clock: VirtualClock
) -> None:
    for key, seconds in (("c", 3), ("a", 1), ("b", 2)):
        queue.add_after(key, seconds)
    await clock.advance(5)
    assert [await taken(queue) for _ in "abc"] == ["a", "b", "c"]


async def test_no_time_at_all_is_at_once(queue: WorkQueue[str]) -> None:
    queue.add_after("a", 0)
    queue.add_after("b", -1)
    assert len(queue) == 2


async def test_one_timer_is_enough(queue: WorkQueue[str], clock: VirtualClock) -> None:
    for number in range(1000):
        queue.add_after(str(number), 1000 - number)
    assert clock.waiting == 1
    await clock.advance(2000)
    assert len(queue) == 1000
    assert clock.waiting == 0


async def test_failures_wait_longer_each_time(clock: VirtualClock) -> None:
    queue: WorkQueue[str] = WorkQueue(limiter=Exponential(0.001, 1000.0), clock=clock)
    waits = []
    for _ in range(4):
        queue.add_limited("a")
        wait = clock.next()
        assert wait is not None
        waits.append(wait)
        await clock.advance(wait)
        queue.done(await taken(queue))
    assert waits == pytest.approx([0.001, 0.002, 0.004, 0.008])
    assert queue.failures("a") == 4
    queue.forget("a")
    assert queue.failures("a") == 0


class Meter:
    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []

    def added(self) -> None:
        self.told.append(("added", 0.0))

    def retried(self) -> None:
        self.told.append(("retried", 0.0))

    def waited(self, seconds: float) -> None:
        self.told.append(("waited", seconds))

    def worked(self, seconds: float) -> None:
        self.told.append(("worked", seconds))


async def test_what_a_queue_does_is_measured(clock: VirtualClock) -> None:
    meter = Meter()
    queue: WorkQueue[str] = WorkQueue(clock=clock, meter=meter)
    queue.add("a")
    queue.add("a")
    await clock.advance(2)
    key = await taken(queue)
    await clock.advance(3)
    assert queue.working == {"a": 2.0}
    queue.done(key)
    assert meter.told == [("added", 0.0), ("waited", 2.0), ("worked", 3.0)]


def test_the_exponential_limiter_is_that_of_client_go() -> None:
    limiter = Exponential[str](0.001, 1000.0)
    assert [limiter.when("one") for _ in range(5)] == [0.001, 0.002, 0.004, 0.008, 0.016]
    assert limiter.failures("one") == 5
    assert [limiter.when("two") for _ in range(2)] == [0.001, 0.002]
    limiter.forget("one")
    assert limiter.failures("one") == 0
    assert limiter.when("one") == 0.001


def test_the_exponential_limiter_has_an_end() -> None:
    limiter = Exponential[str](0.001, 1.0)
    waits = [limiter.when("one") for _ in range(2000)]
    assert max(waits) == 1.0
    assert waits == sorted(waits)


def test_the_slowest_of_several_limiters_counts() -> None:
    clock = VirtualClock()
    limiter = Slowest(Exponential[str](0.005, 1.0), Bucket[str](2.0, 1, clock=clock))
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
                        queue.add_limited(key)
            elif action == "get" and len(queue):
                given = await queue.get()
                assert given not in busy
                busy.append(given)
                owed.discard(given)
            elif action == "done" and busy:
                queue.done(busy.pop(0))
            elif action == "advance":
                await clock.advance(number)
        await clock.advance(5000)
        for key in busy:
            queue.done(key)
        # What was put off before a key was given out may bring it once more: that is allowed.
        left = {await queue.get() for _ in range(len(queue))}
        assert owed <= left

    anyio.run(play)
