"""Shares of priorities: order, and the longest wait."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.kube.clock import sleep
from danlu.kube.controller import Controller, ReconcileResult, Success
from danlu.kube.priorities import LOW_PRIORITY, MAX_PASSED_OVER, ReadyItems
from danlu.kube.ratelimit import TokenBucket
from danlu.kube.types import Key, Object
from tests.fakes.kubernetes import VirtualClock

pytestmark = pytest.mark.anyio


def take_all(items: ReadyItems[str]) -> list[str]:
    return [items.take()[0] for _ in range(len(items))]


def test_higher_priorities_go_first_and_each_is_a_queue() -> None:
    items: ReadyItems[str] = ReadyItems()
    for name, priority in (("a", -100), ("b", 0), ("c", 5), ("d", 0)):
        items.put(name, priority)
    assert items.lengths == {-100: 1, 0: 2, 5: 1}
    assert [items.take() for _ in range(4)] == [("c", 5), ("b", 0), ("d", 0), ("a", -100)]
    with pytest.raises(LookupError):
        items.take()


def test_a_raised_item_goes_to_the_end_of_its_new_priority() -> None:
    items: ReadyItems[str] = ReadyItems()
    for name, priority in (("a", -100), ("b", -100), ("c", 0), ("a", 0), ("c", -100)):
        items.put(name, priority)
    assert items.lengths == {-100: 1, 0: 2}
    assert take_all(items) == ["c", "a", "b"]


def test_of_five_items_one_is_of_the_lower_priority() -> None:
    items: ReadyItems[str] = ReadyItems()
    for number in range(20):
        items.put(f"low-{number}", LOW_PRIORITY)
        items.put(f"high-{number}")
    taken = take_all(items)
    assert [name.startswith("low") for name in taken[:10]] == [*[False] * 4, True] * 2


def test_a_worker_of_a_higher_priority_leaves_lower_keys() -> None:
    items: ReadyItems[str] = ReadyItems()
    items.put("low", LOW_PRIORITY)
    for number in range(10):
        items.put(str(number))
    assert [items.take(0)[0] for _ in range(10)] == [str(number) for number in range(10)]
    assert items.has()
    assert not items.has(0)
    assert items.take() == ("low", LOW_PRIORITY)


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "take", "take high"]), st.sampled_from([-100, -7, 0])),
        max_size=200,
    )
)
def test_no_priority_waits_longer_than_its_share(actions: list[tuple[str, int]]) -> None:
    """An item is taken within a bounded number of turns, whatever is added."""
    items: ReadyItems[int] = ReadyItems()
    waiting: dict[int, list[int]] = {-100: [], -7: [], 0: []}
    due: dict[int, int] = {}
    turns = 0
    for number, (action, priority) in enumerate(actions):
        if action == "put":
            items.put(number, priority)
            waiting[priority].append(number)
            # One in five is of a lower level, and there may be two that were passed over.
            due[number] = turns + (MAX_PASSED_OVER + 2) * len(waiting[priority])
            continue
        lowest = 0 if action == "take high" else None
        if not items.has(lowest):
            assert not waiting[0] if lowest == 0 else not any(waiting.values())
            continue
        item, level = items.take(lowest)
        assert waiting[level].pop(0) == item
        if lowest is None:
            turns += 1
            assert turns <= due[item]
    assert len(items) == sum(map(len, waiting.values()))


# -- a controller with more to begin than it can


class ReconcileLoad:
    """Jobs submitted together, each started within a second; running ones report now and then."""

    def __init__(
        self, clock: VirtualClock, priority: Callable[[Key], int], *, reserved: int = 0
    ) -> None:
        self.clock = clock
        self.asked: dict[Key, float] = {}
        self.latencies: list[float] = []
        self.last_begun = 0.0
        self.priority = priority
        self.controller: Controller[Object] = Controller(
            "c", self.work, workers=8, reserved=reserved, clock=clock
        )

    def ask(self, key: Key) -> None:
        self.asked.setdefault(key, self.clock.monotonic())
        self.controller.queue.add(key, priority=self.priority(key))

    async def work(self, key: Key) -> ReconcileResult:
        asked = self.asked.pop(key)
        if key.namespace == "new":
            await sleep(self.clock, 1.0)
            self.last_begun = self.clock.monotonic()
            for replica in range(3):
                report = Key("running", f"{key.name}-{replica}")
                self.clock.call_later(5.0 + replica, partial(self.ask, report))
        else:
            await sleep(self.clock, 0.05)
            self.latencies.append(self.clock.monotonic() - asked)
        return Success()

    async def run(self, jobs: int) -> None:
        for number in range(jobs):
            self.ask(Key("new", str(number)))
        async with anyio.create_task_group() as group:
            group.start_soon(self.controller.run)
            while len(self.latencies) < 3 * jobs:
                await self.clock.advance(1.0)
            self.controller.queue.shut_down()


async def test_running_jobs_do_not_wait_for_those_that_begin() -> None:
    def priority(key: Key) -> int:
        return LOW_PRIORITY if key.namespace == "new" else 0

    fair = ReconcileLoad(VirtualClock(), priority, reserved=1)
    await fair.run(400)
    alike = ReconcileLoad(VirtualClock(), lambda key: 0)
    await alike.run(400)
    assert statistics.median(alike.latencies) > 10
    assert statistics.median(fair.latencies) <= 0.5
    assert max(fair.latencies) <= 2.0
    assert fair.last_begun <= 1.1 * alike.last_begun


async def test_jobs_that_begin_get_a_share_however_much_the_others_report() -> None:
    clock = VirtualClock()
    begun: list[float] = []

    async def work(key: Key) -> ReconcileResult:
        await sleep(clock, 0.1)
        if key.namespace == "new":
            begun.append(clock.monotonic())
        else:
            controller.queue.add(key)
        return Success()

    controller: Controller[Object] = Controller("c", work, clock=clock)
    for number in range(50):
        controller.queue.add(Key("running", str(number)))
    for number in range(20):
        controller.queue.add(Key("new", str(number)), priority=LOW_PRIORITY)
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run)
        await clock.advance(11.0)
        group.cancel_scope.cancel()
    assert begun == pytest.approx([0.5 * number for number in range(1, 21)], abs=0.11)


async def test_a_reserved_worker_is_kept_for_running_jobs() -> None:
    clock = VirtualClock()
    reported: list[float] = []

    async def work(key: Key) -> ReconcileResult:
        if key.namespace == "new":
            await anyio.sleep_forever()
        reported.append(clock.monotonic())
        return Success()

    controller: Controller[Object] = Controller("c", work, workers=2, reserved=1, clock=clock)
    for number in range(10):
        controller.queue.add(Key("new", str(number)), priority=LOW_PRIORITY)
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run)
        await clock.advance(1.0)
        assert controller.active == 2
        controller.queue.add(Key("running", "a"))
        await clock.advance(1.0)
        group.cancel_scope.cancel()
    assert reported == [1.0]


# -- requests that are limited


async def test_a_request_that_matters_does_not_wait_for_all_that_were_first() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(10.0, 1, clock=clock)
    sent: list[tuple[str, float]] = []

    async def send(name: str, priority: int) -> None:
        await bucket.acquire(priority=priority)
        sent.append((name, round(clock.monotonic(), 6)))

    async with anyio.create_task_group() as group:
        for number in range(100):
            group.start_soon(send, f"create-{number}", LOW_PRIORITY)
        await clock.advance(1.0)
        group.start_soon(send, "lease", 0)
        await clock.advance(20.0)
    assert dict(sent)["lease"] <= 1.2
    assert len(sent) == 101
    # The rate is kept: the burst at once, then one each tenth of a second.
    times = [time for _, time in sent]
    assert times == pytest.approx([0.1 * number for number in range(101)])


async def test_a_token_of_a_request_that_was_cancelled_goes_to_the_next() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(1.0, 1, clock=clock)
    sent: list[str] = []

    async def send(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            await bucket.acquire()
            sent.append(name)

    scopes = {name: anyio.CancelScope() for name in "abc"}
    async with anyio.create_task_group() as group:
        for name, scope in scopes.items():
            group.start_soon(send, name, scope)
        await clock.advance(0.5)
        scopes["b"].cancel()
        await clock.advance(0.6)
    assert sent == ["a", "c"]
