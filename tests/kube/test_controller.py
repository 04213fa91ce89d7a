"""Controllers: outcomes and what comes of them, workers, sources."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from danlu.errors import OutsideError, UsageError
from danlu.kube.client import Client, Selection
from danlu.kube.controller import (
    Again,
    Controller,
    Done,
    Failed,
    GaveUp,
    Later,
    Outcome,
    Wait,
    own_key,
    owner_of,
)
from danlu.kube.failures import Status, TooManyRequests
from danlu.kube.informer import Informer
from danlu.kube.ratelimit import Exponential
from danlu.kube.resources import CONFIG_MAPS, PODS
from danlu.kube.types import Key, Object, ObjectMeta, OwnerReference
from danlu.testing.kubernetes import VirtualClock
from tests.kube.objects import config_map, eventually, owner, pod

pytestmark = pytest.mark.anyio
KEY = Key("space", "one")


class Stage:
    """A controller whose reconciliations give what they are told to, in order."""

    def __init__(self, clock: VirtualClock, *outcomes: Outcome | Exception) -> None:
        self.outcomes = list(outcomes)
        self.times: list[float] = []
        self.results: list[str] = []
        self.clock = clock
        self.controller: Controller[Object] = Controller(
            "stage", self.reconcile, clock=clock, limiter=Exponential(1.0, 100.0)
        )
        self.controller.meter = lambda result, seconds: self.results.append(result)

    async def reconcile(self, key: Key) -> Outcome:
        assert key == KEY
        self.times.append(self.clock.monotonic())
        outcome = self.outcomes.pop(0) if self.outcomes else Done()
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
        (Done(), [0.0], "success"),
        (Later(7.0), [0.0, 7.0], "requeue_after"),
        (Wait(7.0), [0.0, 7.0], "requeue_after"),
        (Again(), [0.0, 1.0], "requeue"),
        (Failed(OSError()), [0.0, 1.0], "error"),
        (Failed(OSError(), after=9.0), [0.0, 9.0], "error"),
        (GaveUp(OSError()), [0.0], "terminal_error"),
        (OutsideError("no"), [0.0, 1.0], "error"),
        (UsageError("no"), [0.0, 1.0], "error"),
        (ZeroDivisionError(), [0.0, 1.0], "error"),
        (TooManyRequests(Status(code=429), retry_after=5.0), [0.0, 5.0], "error"),
    ],
)
async def test_an_outcome_says_when_to_come_again(
    clock: VirtualClock, outcome: Outcome | Exception, times: list[float], result: str
) -> None:
    stage = Stage(clock, outcome)
    async with stage.running():
        await clock.advance(50)
    assert stage.times == times
    assert stage.results[0] == result


async def test_failures_wait_longer_until_one_succeeds(clock: VirtualClock) -> None:
    stage = Stage(clock, Again(), Again(), Again(), Done(), Again())
    async with stage.running():
        await clock.advance(20)
        stage.controller.queue.add(KEY)
        await clock.advance(20)
    assert stage.times == [0.0, 1.0, 3.0, 7.0, 20.0, 21.0]


async def test_a_later_time_does_not_count_as_a_failure(clock: VirtualClock) -> None:
    stage = Stage(clock, Again(), Later(10.0), Again())
    async with stage.running():
        await clock.advance(50)
    assert stage.times == [0.0, 1.0, 11.0, 12.0]


async def test_a_wait_leaves_failures_counted(clock: VirtualClock) -> None:
    stage = Stage(clock, Again(), Wait(10.0), Again())
    async with stage.running():
        await clock.advance(50)
    assert stage.times == [0.0, 1.0, 11.0, 13.0]


async def test_one_defect_does_not_end_the_work_on_others(clock: VirtualClock) -> None:
    done: list[str] = []

    async def reconcile(key: Key) -> Outcome:
        if key.name == "bad":
            raise AssertionError("a defect")
        done.append(key.name)
        return Done()

    controller: Controller[Object] = Controller("c", reconcile, workers=2, clock=clock)
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run)
        for name in ("bad", "a", "b"):
            controller.queue.add(Key("space", name))
        await clock.advance(1)
        controller.queue.shut_down()
    assert sorted(done) == ["a", "b"]


async def test_workers_work_side_by_side_but_never_on_one_key(clock: VirtualClock) -> None:
    gate = anyio.Event()
    busy: list[Key] = []
    most = 0

    async def reconcile(key: Key) -> Outcome:
        nonlocal most
        assert key not in busy
        busy.append(key)
        most = max(most, len(busy))
        await gate.wait()
        busy.remove(key)
        return Done()

    controller: Controller[Object] = Controller("c", reconcile, workers=3, clock=clock)
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run)
        for _ in range(2):
            for number in range(5):
                controller.queue.add(Key("space", str(number)))
            await anyio.wait_all_tasks_blocked()
        assert controller.active == 3
        gate.set()
        with anyio.fail_after(2):
            await controller.queue.drain()
    assert most == 3


async def test_work_that_takes_too_long_is_ended_and_tried_again(clock: VirtualClock) -> None:
    begun: list[float] = []

    async def reconcile(key: Key) -> Outcome:
        begun.append(clock.monotonic())
        if len(begun) == 1:
            await anyio.sleep_forever()
        return Done()

    controller: Controller[Object] = Controller("c", reconcile, clock=clock, seconds=30.0)
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run)
        controller.queue.add(KEY)
        await clock.advance(40)
        controller.queue.shut_down()
    assert begun == [0.0, pytest.approx(30.005)]


def test_the_owner_of_an_object_is_found_by_kind_and_group() -> None:
    keys = owner_of("TFJob", "kubeflow.org")
    found: list[list[Key]] = []
    for version, kind, controls in (
        ("kubeflow.org/v1", "TFJob", True),
        ("kubeflow.org/v2", "TFJob", True),
        ("kubeflow.org/v1", "MPIJob", True),
        ("other.org/v1", "TFJob", True),
        ("kubeflow.org/v1", "TFJob", False),
    ):
        reference = OwnerReference(version, kind, "job", "uid", controller=controls)
        metadata = ObjectMeta(name="pod", namespace="space", owner_references=(reference,))
        found.append(list(keys(Object(metadata))))
    job = [Key("space", "job")]
    assert found == [job, job, [], [], []]


async def test_what_changes_brings_its_owner(kube: Client) -> None:
    parent = await kube.create(CONFIG_MAPS, config_map("parent", "default"))
    parents = Informer(kube, CONFIG_MAPS.decoded(Object), Selection("default"))
    pods = Informer(kube, PODS.decoded(Object), Selection("default"))
    reconciled: list[Key] = []

    async def reconcile(key: Key) -> Outcome:
        reconciled.append(key)
        return Done()

    controller: Controller[Object] = Controller("c", reconcile)
    controller.watch(parents, own_key)
    controller.watch(pods, owner_of("ConfigMap", ""), when=lambda old, new: new is not None)
    async with anyio.create_task_group() as group:
        for informer in (parents, pods):
            group.start_soon(informer.run)
            await informer.wait_synced()
        group.start_soon(controller.run)
        await eventually(lambda: len(reconciled) == 1)
        await kube.create(PODS, pod("child", "default", ownerReferences=[owner(parent)]))
        await eventually(lambda: len(reconciled) == 2)
        await kube.delete(PODS, "child", namespace="default")
        await eventually(lambda: len(pods.store) == 0)
        group.cancel_scope.cancel()
    assert reconciled == [Key("default", "parent")] * 2
