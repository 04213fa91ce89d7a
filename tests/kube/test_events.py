"""Events: sent once, then counted, aggregated and limited."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from danlu.kube.client import Client
from danlu.kube.clock import sleep
from danlu.kube.events import EventRecorder, ObjectReference
from danlu.kube.resources import EVENTS
from danlu.kube.watch import ListOptions
from tests.fakes.kubernetes import ApiFault, FakeKubernetes, VirtualClock
from tests.kube.objects import eventually

pytestmark = pytest.mark.anyio
JOB = ObjectReference("kubeflow.org/v1", "TFJob", "default", "job", "uid-1", "7")


@asynccontextmanager
async def record_events(client: Client) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(client, "tests")
    async with anyio.create_task_group() as group:
        group.start_soon(recorder.run)
        yield recorder
        await eventually(lambda: recorder.idle)
        group.cancel_scope.cancel()


async def events(client: Client) -> list[dict[str, Any]]:
    result = (await client.list(EVENTS, ListOptions("default"))).items
    return sorted(result, key=lambda event: event["metadata"]["name"])


async def test_an_event_refers_to_its_object(virtual_time_client: Client) -> None:
    async with record_events(virtual_time_client) as recorder:
        recorder.event(JOB, "Normal", "Created", "it was made")
    (event,) = await events(virtual_time_client)
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


async def test_the_same_again_is_counted(virtual_time_client: Client, clock: VirtualClock) -> None:
    async with record_events(virtual_time_client) as recorder:
        for _ in range(3):
            recorder.event(JOB, "Warning", "Failed", "no")
            await eventually(lambda: recorder.idle)
            await clock.advance(10)
    (event,) = await events(virtual_time_client)
    assert event["count"] == 3
    assert event["firstTimestamp"] == "2026-01-01T00:00:00Z"
    assert event["lastTimestamp"] == "2026-01-01T00:00:20Z"


async def test_events_recorded_together_are_one_request(
    virtual_time_client: Client, fake: FakeKubernetes
) -> None:
    async with record_events(virtual_time_client) as recorder:
        for _ in range(20):
            recorder.event(JOB, "Warning", "Failed", "no")
    (event,) = await events(virtual_time_client)
    assert event["count"] == 20
    assert fake.counts["create", "events"] + fake.counts["patch", "events"] <= 2


async def test_more_than_ten_similar_events_are_combined(virtual_time_client: Client) -> None:
    async with record_events(virtual_time_client) as recorder:
        for number in range(20):
            recorder.event(JOB, "Warning", "Failed", f"pod {number} failed")
    result = await events(virtual_time_client)
    combined = [event for event in result if event["message"].startswith("(combined from similar")]
    assert len(result) == 11
    assert [event["count"] for event in combined] == [10]
    assert combined[0]["message"] == "(combined from similar events): pod 19 failed"


async def test_similar_events_are_sent_again_after_ten_minutes(
    virtual_time_client: Client, clock: VirtualClock
) -> None:
    async with record_events(virtual_time_client) as recorder:
        for number in range(12):
            recorder.event(JOB, "Warning", "Failed", f"pod {number} failed")
        await clock.advance(601)
        recorder.event(JOB, "Warning", "Failed", "pod 99 failed")
    assert "pod 99 failed" in {event["message"] for event in await events(virtual_time_client)}


async def test_events_of_one_object_are_limited(
    virtual_time_client: Client, fake: FakeKubernetes, clock: VirtualClock
) -> None:
    async with record_events(virtual_time_client) as recorder:
        for number in range(100):
            recorder.event(JOB, "Normal", f"Reason{number}", "x")
        other = ObjectReference("v1", "Pod", "default", "other", "uid-2")
        recorder.event(other, "Normal", "Created", "x")
        await eventually(lambda: recorder.idle)
        assert len(await events(virtual_time_client)) == 26
        await clock.advance(301)
        recorder.event(JOB, "Normal", "Later", "x")
        recorder.event(JOB, "Normal", "TooMuch", "x")
    assert len(await events(virtual_time_client)) == 27


async def test_an_event_that_expired_on_the_server_is_created_again(
    virtual_time_client: Client, kube: Client
) -> None:
    async with record_events(virtual_time_client) as recorder:
        recorder.event(JOB, "Normal", "Created", "x")
        await eventually(lambda: recorder.idle)
        await kube.delete_all(EVENTS, ListOptions("default"))
        recorder.event(JOB, "Normal", "Created", "x")
    (event,) = await events(virtual_time_client)
    assert event["count"] == 2


async def test_an_event_that_cannot_be_sent_is_dropped_and_others_are_sent(
    virtual_time_client: Client, fake: FakeKubernetes, clock: VirtualClock
) -> None:
    fault = ApiFault(resource="events", times=12, status=500)
    fake.faults.append(fault)
    begun = clock.monotonic()
    async with record_events(virtual_time_client) as recorder:
        recorder.event(JOB, "Normal", "Lost", "x")
        recorder.event(JOB, "Normal", "Kept", "x")
        await flush_events(clock, recorder)
    assert fault.times == 0
    # 0.2 s doubled up to 5 s, each up to twice as long by chance.
    assert 36 < clock.monotonic() - begun < 80
    assert [event["reason"] for event in await events(virtual_time_client)] == ["Kept"]
    assert recorder.dropped == 1


async def test_events_are_sent_when_the_server_is_back(
    virtual_time_client: Client, fake: FakeKubernetes, clock: VirtualClock
) -> None:
    fake.faults.append(ApiFault(resource="events", times=6, drop=True))
    async with record_events(virtual_time_client) as recorder:
        for number in range(3):
            recorder.event(JOB, "Normal", f"Reason{number}", "x")
        await flush_events(clock, recorder)
    assert [event["reason"] for event in await events(virtual_time_client)] == [
        "Reason0",
        "Reason1",
        "Reason2",
    ]
    assert recorder.dropped == 0


async def flush_events(clock: VirtualClock, recorder: EventRecorder) -> None:
    """Let time pass until all is sent or dropped."""
    with anyio.fail_after(60):
        while not recorder.idle:
            await clock.advance(0.5)
            await anyio.sleep(0.001)


async def test_an_event_whose_response_was_lost_is_not_duplicated(
    virtual_time_client: Client, fake: FakeKubernetes, clock: VirtualClock
) -> None:
    fake.faults.append(ApiFault(verb="create", resource="events", drop=True, after=True))
    async with record_events(virtual_time_client) as recorder:
        recorder.event(JOB, "Normal", "Created", "x")
        await flush_events(clock, recorder)
    assert len(await events(virtual_time_client)) == 1
    assert recorder.dropped == 0


async def test_recording_never_waits(virtual_time_client: Client) -> None:
    recorder = EventRecorder(virtual_time_client, "tests")
    for number in range(20_500):
        about = ObjectReference("v1", "Pod", "default", f"pod-{number}", f"uid-{number}")
        recorder.event(about, "Normal", "Created", "x")
    assert recorder.dropped == 500


@pytest.mark.parametrize(("busy", "sent"), [(False, 10), (True, 2)])
async def test_events_yield_to_busy_controllers(clock: VirtualClock, busy: bool, sent: int) -> None:
    """A fifth of the time of one connection, until an operator that ends sends the rest."""

    class SlowEventClient:
        def __init__(self) -> None:
            self.clock = clock
            self.created = 0

        async def create(self, *_: object) -> None:
            await sleep(clock, 0.1)
            self.created += 1

    client = SlowEventClient()
    recorder = EventRecorder(client, "tests", busy=lambda: busy)  # type: ignore[arg-type]
    for number in range(20):
        recorder.event(JOB, "Normal", f"Reason{number}", "x")
    async with anyio.create_task_group() as group:
        group.start_soon(recorder.run)
        await clock.advance(1.0)
        assert client.created == sent
        group.start_soon(recorder.drain)
        await clock.advance(2.4)
        assert client.created == 20
        group.cancel_scope.cancel()
