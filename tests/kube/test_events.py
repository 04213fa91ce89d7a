"""Events: told once, counted after that, and never too many."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from danlu.kube.access import Access
from danlu.kube.client import Client, Selection
from danlu.kube.events import EventRecorder, Reference
from danlu.kube.resources import EVENTS
from danlu.testing.kubernetes import FakeKubernetes, Fault, VirtualClock
from tests.kube.objects import eventually

pytestmark = pytest.mark.anyio
JOB = Reference("kubeflow.org/v1", "TFJob", "default", "job", "uid-1", "7")


@pytest.fixture
async def held(fake: FakeKubernetes, clock: VirtualClock) -> AsyncIterator[Client]:
    async with Client(Access(server=fake.url), clock=clock) as client:
        yield client


@asynccontextmanager
async def recording(client: Client) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(client, "tests")
    async with anyio.create_task_group() as group:
        group.start_soon(recorder.run)
        yield recorder
        await eventually(lambda: recorder.idle)
        group.cancel_scope.cancel()


async def events(client: Client) -> list[dict[str, Any]]:
    found = (await client.list(EVENTS, Selection("default"))).items
    return sorted(found, key=lambda one: one["metadata"]["name"])


async def test_an_event_says_what_happened_to_what(held: Client) -> None:
    async with recording(held) as recorder:
        recorder.event(JOB, "Normal", "Created", "it was made")
    (event,) = await events(held)
    assert event["involvedObject"] == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "namespace": "default",
        "name": "job",
        "uid": "uid-1",
    }
    assert (event["type"], event["reason"], event["message"]) == (
        "Normal",
        "Created",
        "it was made",
    )
    assert event["count"] == 1
    assert event["source"] == {"component": "tests"}
    assert event["firstTimestamp"] == "2026-01-01T00:00:00Z"


async def test_the_same_again_is_counted(held: Client, clock: VirtualClock) -> None:
    async with recording(held) as recorder:
        for _ in range(3):
            recorder.event(JOB, "Warning", "Failed", "no")
            await eventually(lambda: recorder.idle)
            await clock.advance(10)
    (event,) = await events(held)
    assert event["count"] == 3
    assert event["firstTimestamp"] == "2026-01-01T00:00:00Z"
    assert event["lastTimestamp"] == "2026-01-01T00:00:20Z"


async def test_many_at_once_are_one_request(held: Client, fake: FakeKubernetes) -> None:
    async with recording(held) as recorder:
        for _ in range(20):
            recorder.event(JOB, "Warning", "Failed", "no")
    (event,) = await events(held)
    assert event["count"] == 20
    assert fake.counts["create", "events"] + fake.counts["patch", "events"] <= 2


async def test_many_that_differ_in_words_only_become_one(held: Client) -> None:
    async with recording(held) as recorder:
        for number in range(20):
            recorder.event(JOB, "Warning", "Failed", f"pod {number} failed")
    found = await events(held)
    combined = [one for one in found if one["message"].startswith("(combined from similar")]
    assert len(found) == 11
    assert [one["count"] for one in combined] == [10]
    assert combined[0]["message"] == "(combined from similar events): pod 19 failed"


async def test_after_a_while_words_are_told_again(held: Client, clock: VirtualClock) -> None:
    async with recording(held) as recorder:
        for number in range(12):
            recorder.event(JOB, "Warning", "Failed", f"pod {number} failed")
        await clock.advance(601)
        recorder.event(JOB, "Warning", "Failed", "pod 99 failed")
    assert "pod 99 failed" in {one["message"] for one in await events(held)}


async def test_one_object_has_so_many_and_no_more(
    held: Client, fake: FakeKubernetes, clock: VirtualClock
) -> None:
    async with recording(held) as recorder:
        for number in range(100):
            recorder.event(JOB, "Normal", f"Reason{number}", "x")
        other = Reference("v1", "Pod", "default", "other", "uid-2")
        recorder.event(other, "Normal", "Created", "x")
        await eventually(lambda: recorder.idle)
        assert len(await events(held)) == 26
        await clock.advance(301)
        recorder.event(JOB, "Normal", "Later", "x")
        recorder.event(JOB, "Normal", "TooMuch", "x")
    assert len(await events(held)) == 27


async def test_an_event_that_the_server_forgot_is_made_anew(held: Client, kube: Client) -> None:
    async with recording(held) as recorder:
        recorder.event(JOB, "Normal", "Created", "x")
        await eventually(lambda: recorder.idle)
        await kube.delete_all(EVENTS, Selection("default"))
        recorder.event(JOB, "Normal", "Created", "x")
    (event,) = await events(held)
    assert event["count"] == 2


async def test_what_cannot_be_sent_is_dropped_and_the_rest_goes_on(
    held: Client, fake: FakeKubernetes, clock: VirtualClock
) -> None:
    fault = Fault(resource="events", times=12, status=500)
    fake.faults.append(fault)
    begun = clock.monotonic()
    async with recording(held) as recorder:
        recorder.event(JOB, "Normal", "Lost", "x")
        recorder.event(JOB, "Normal", "Kept", "x")
        await passing(clock, recorder)
    assert fault.times == 0
    # 0.2 s doubled up to 10 s, each up to twice as long by chance.
    assert 60 < clock.monotonic() - begun < 140
    assert [one["reason"] for one in await events(held)] == ["Kept"]
    assert recorder.dropped == 1


async def test_what_is_told_while_the_server_is_away_is_sent_when_it_is_back(
    held: Client, fake: FakeKubernetes, clock: VirtualClock
) -> None:
    fake.faults.append(Fault(resource="events", times=6, drop=True))
    async with recording(held) as recorder:
        for number in range(3):
            recorder.event(JOB, "Normal", f"Reason{number}", "x")
        await passing(clock, recorder)
    assert [one["reason"] for one in await events(held)] == ["Reason0", "Reason1", "Reason2"]
    assert recorder.dropped == 0


async def passing(clock: VirtualClock, recorder: EventRecorder) -> None:
    """Let time pass until all is sent or dropped."""
    with anyio.fail_after(10):
        while not recorder.idle:
            await clock.advance(0.5)
            await anyio.sleep(0.001)


async def test_an_event_whose_answer_was_lost_is_not_doubled(
    held: Client, fake: FakeKubernetes, clock: VirtualClock
) -> None:
    fake.faults.append(Fault(verb="create", resource="events", drop=True, after=True))
    async with recording(held) as recorder:
        recorder.event(JOB, "Normal", "Created", "x")
        await passing(clock, recorder)
    assert len(await events(held)) == 1
    assert recorder.dropped == 0


async def test_recording_never_waits(held: Client) -> None:
    recorder = EventRecorder(held, "tests")
    for number in range(1500):
        about = Reference("v1", "Pod", "default", f"pod-{number}", f"uid-{number}")
        recorder.event(about, "Normal", "Created", "x")
    assert recorder.dropped == 500
