"""Controllers: results and requeues, workers, watches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from danlu.errors import OutsideError, UsageError
from danlu.kube.client import Client
from danlu.kube.controller import (
    Controller,
    ReconcileError,
    ReconcileResult,
    Requeue,
    RequeueAfter,
    Success,
    TerminalError,
    map_to_owner,
    map_to_self,
)
from danlu.kube.errors import ApiStatus, TooManyRequests
from danlu.kube.informer import Informer
from danlu.kube.ratelimit import RateLimiter
from danlu.kube.resources import CONFIG_MAPS, PODS
from danlu.kube.types import Key, Object, ObjectMeta, OwnerReference
from danlu.kube.watch import ListOptions
from tests.fakes.kubernetes import VirtualClock
from tests.kube.objects import config_map, eventually, owner, pod

pytestmark = pytest.mark.anyio
KEY = Key("space", "one")


class ScriptedController:
    """A controller whose reconciliations return the given results, in order."""

    def __init__(self, clock: VirtualClock, *outcomes: ReconcileResult | Exception) -> None:
        self.outcomes = list(outcomes)
        self.times: list[float] = []
        self.results: list[str] = []
        self.clock = clock
        self.controller: Controller[Object] = Controller(
            "stage",
            self.reconcile,
            clock=clock,
            limiter=RateLimiter(1.0, 100.0, rate=0),
        )
        self.controller.meter = lambda result, seconds: self.results.append(result)

    async def reconcile(self, key: Key) -> ReconcileResult:
        assert key == KEY
        self.times.append(self.clock.monotonic())
        outcome = self.outcomes.pop(0) if self.outcomes else Success()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(self.controller.run)
            self.controller.queue.add(KEY)
            yield
            self.controller.queue.shut_down()


@pytest.mark.parametrize(
    ("outcome", "times", "result"),
    [
        (Success(), [0.0], "success"),
        (RequeueAfter(7.0), [0.0, 7.0], "requeue_after"),
        (RequeueAfter(7.0, keep_failures=True), [0.0, 7.0], "requeue_after"),
        (Requeue(), [0.0, 1.0], "requeue"),
        (ReconcileError(OSError()), [0.0, 1.0], "error"),
        (ReconcileError(OSError(), after=9.0), [0.0, 9.0], "error"),
        (TerminalError(OSError()), [0.0], "terminal_error"),
        (OutsideError("no"), [0.0, 1.0], "error"),
        (UsageError("no"), [0.0, 1.0], "error"),
        (ZeroDivisionError(), [0.0, 1.0], "error"),
        (TooManyRequests(ApiStatus(code=429), retry_after=5.0), [0.0, 5.0], "error"),
    ],
)
async def test_the_result_of_a_reconciliation_decides_the_requeue(
    clock: VirtualClock, outcome: ReconcileResult | Exception, times: list[float], result: str
) -> None:
    stage = ScriptedController(clock, outcome)
    async with stage.running():
        await clock.advance(50)
    assert stage.times == times
    assert stage.results[0] == result


async def test_failures_wait_longer_until_one_succeeds(clock: VirtualClock) -> None:
    stage = ScriptedController(clock, Requeue(), Requeue(), Requeue(), Success(), Requeue())
    async with stage.running():
        await clock.advance(20)
        stage.controller.queue.add(KEY)
        await clock.advance(20)
    assert stage.times == [0.0, 1.0, 3.0, 7.0, 20.0, 21.0]


async def test_a_later_time_does_not_count_as_a_failure(clock: VirtualClock) -> None:
    stage = ScriptedController(clock, Requeue(), RequeueAfter(10.0), Requeue())
    async with stage.running():
        await clock.advance(50)
    assert stage.times == [0.0, 1.0, 11.0, 12.0]


async def test_a_wait_leaves_failures_counted(clock: VirtualClock) -> None:
    stage = ScriptedController(clock, Requeue(), RequeueAfter(10.0, keep_failures=True), Requeue())
    async with stage.running():
        await clock.advance(50)
    assert stage.times == [0.0, 1.0, 11.0, 13.0]


@pytest.mark.parametrize(
    ("outcome", "priority"),
    [
        (RequeueAfter(1.0), 0),
        (RequeueAfter(1.0, -100), -100),
        (RequeueAfter(1.0, keep_failures=True), -7),
        (Requeue(), -7),
        (ReconcileError(OSError()), -7),
        (ReconcileError(OSError(), after=1.0), -7),
    ],
)
async def test_a_requeued_key_keeps_its_priority_unless_it_was_delayed(
    clock: VirtualClock, outcome: ReconcileResult, priority: int
) -> None:
    async def reconcile(key: Key) -> ReconcileResult:
        return outcome

    controller: Controller[Object] = Controller(
        "c", reconcile, clock=clock, limiter=RateLimiter(1.0, 100.0, rate=0)
    )
    controller.queue.add(KEY, priority=-7)
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run)
        await clock.advance(0.5)
        group.cancel_scope.cancel()
    await clock.advance(1.0)
    depths = controller.queue.depths
    assert {level: depth for level, depth in depths.items() if depth} == {priority: 1}


async def test_one_defect_does_not_end_the_work_on_others(clock: VirtualClock) -> None:
    result: list[str] = []

    async def reconcile(key: Key) -> ReconcileResult:
        if key.name == "bad":
            raise AssertionError("a defect")
        result.append(key.name)
        return Success()

    controller: Controller[Object] = Controller("c", reconcile, workers=2, clock=clock)
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run)
        for name in ("bad", "a", "b"):
            controller.queue.add(Key("space", name))
        await clock.advance(1)
        controller.queue.shut_down()
    assert sorted(result) == ["a", "b"]


async def test_workers_work_side_by_side_but_never_on_one_key(clock: VirtualClock) -> None:
    gate = anyio.Event()
    busy: list[Key] = []
    most = 0

    async def reconcile(key: Key) -> ReconcileResult:
        nonlocal most
        assert key not in busy
        busy.append(key)
        most = max(most, len(busy))
        await gate.wait()
        busy.remove(key)
        return Success()

    controller: Controller[Object] = Controller("c", reconcile, workers=3, clock=clock)
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run)
        for _ in range(2):
            for number in range(5):
                controller.queue.add(Key("space", str(number)))
            await anyio.wait_all_tasks_blocked()
        assert controller.active == 3
        gate.set()
        with anyio.fail_after(60):
            await controller.queue.drain()
    assert most == 3


async def test_work_that_takes_too_long_is_ended_and_tried_again(clock: VirtualClock) -> None:
    begun: list[float] = []

    async def reconcile(key: Key) -> ReconcileResult:
        begun.append(clock.monotonic())
        if len(begun) == 1:
            await anyio.sleep_forever()
        return Success()

    controller: Controller[Object] = Controller("c", reconcile, clock=clock, seconds=30.0)
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run)
        controller.queue.add(KEY)
        await clock.advance(40)
        controller.queue.shut_down()
    assert begun == [0.0, pytest.approx(30.005)]


def test_the_owner_of_an_object_is_found_by_kind_and_group() -> None:
    keys = map_to_owner("TFJob", "kubeflow.org")
    results: list[list[Key]] = []
    for version, kind, controls in (
        ("kubeflow.org/v1", "TFJob", True),
        ("kubeflow.org/v2", "TFJob", True),
        ("kubeflow.org/v1", "MPIJob", True),
        ("other.org/v1", "TFJob", True),
        ("kubeflow.org/v1", "TFJob", False),
    ):
        reference = OwnerReference(version, kind, "job", "uid", controller=controls)
        metadata = ObjectMeta(name="pod", namespace="space", owner_references=(reference,))
        results.append(list(keys(Object(metadata))))
    job = [Key("space", "job")]
    assert results == [job, job, [], [], []]


async def test_changes_are_batched_only_while_keys_wait(kube: Client, clock: VirtualClock) -> None:
    pods = Informer(kube, PODS.with_model(Object), ListOptions("default"))
    times: list[float] = []

    async def reconcile(key: Key) -> ReconcileResult:
        if key == KEY:
            times.append(clock.monotonic())
        return Success()

    controller: Controller[Object] = Controller("c", reconcile, clock=clock)
    controller.watch(pods, lambda obj: (KEY,), batch_seconds=0.5)
    change = Object(ObjectMeta(name="pod", namespace="space"))
    for waiting in (0, 5):
        for number in range(waiting):
            controller.queue.add(Key("other", str(number)))
        for _ in range(3):
            pods._notify_handlers(None, change)
            async with anyio.create_task_group() as group:
                group.start_soon(controller.run)
                await clock.advance(0.1)
                group.cancel_scope.cancel()
            for number in range(waiting):
                controller.queue.add(Key("other", str(number)))
        async with anyio.create_task_group() as group:
            group.start_soon(controller.run)
            await clock.advance(1.0)
            group.cancel_scope.cancel()
    # Each of the first three at once, the others together half a second after the first of them.
    assert times == pytest.approx([0.0, 0.1, 0.2, 1.8])


async def test_a_change_of_an_object_reconciles_its_owner(kube: Client) -> None:
    parent = await kube.create(CONFIG_MAPS, config_map("parent", "default"))
    parents = Informer(kube, CONFIG_MAPS.with_model(Object), ListOptions("default"))
    pods = Informer(kube, PODS.with_model(Object), ListOptions("default"))
    reconciled: list[Key] = []

    async def reconcile(key: Key) -> ReconcileResult:
        reconciled.append(key)
        return Success()

    controller: Controller[Object] = Controller("c", reconcile)
    controller.watch(parents, map_to_self)
    controller.watch(
        pods, map_to_owner("ConfigMap", ""), predicate=lambda old, new: new is not None
    )
    async with anyio.create_task_group() as group:
        for informer in (parents, pods):
            group.start_soon(informer.run)
            await informer.wait_for_cache_sync()
        group.start_soon(controller.run)
        await eventually(lambda: len(reconciled) == 1)
        await kube.create(PODS, pod("child", "default", ownerReferences=[owner(parent)]))
        await eventually(lambda: len(reconciled) == 2)
        await kube.delete(PODS, "child", namespace="default")
        await eventually(lambda: len(pods.indexer) == 0)
        group.cancel_scope.cancel()
    assert reconciled == [Key("default", "parent")] * 2
