"""The simulated kubelet: pods go through the phases that a test scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from danlu.kube.client import Client, DeleteOptions
from danlu.kube.config import ClusterConfig
from danlu.kube.errors import NotFound
from danlu.kube.patch import merge_patch
from danlu.kube.resources import PODS
from tests.fakes.kubernetes import (
    ApiFault,
    FakeKubelet,
    FakeKubernetes,
    PodBehaviour,
    PodScript,
    SimulatedPod,
    VirtualClock,
    complete_after,
    run_forever,
)
from tests.kube.objects import eventually, pod

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def run_kubelet(
    fake: FakeKubernetes, behaviour: PodBehaviour, clock: VirtualClock, **options: Any
) -> AsyncIterator[FakeKubelet]:
    access = ClusterConfig(server=fake.url)
    async with FakeKubelet(access, behaviour=behaviour, clock=clock, **options) as kubelet:
        yield kubelet


async def make(kube: Client, name: str = "one", *, policy: str = "Never") -> None:
    document = pod(name, "default")
    document["spec"]["restartPolicy"] = policy
    await kube.create(PODS, document)


async def status(kube: Client, name: str = "one") -> dict[str, Any]:
    results: dict[str, Any] = (await kube.get(PODS, name, namespace="default"))["status"]
    return results


async def until(kube: Client, phase: str, name: str = "one") -> dict[str, Any]:
    """Wait until the pod is in this phase, and return its status."""

    async def is_there() -> bool:
        return bool((await status(kube, name))["phase"] == phase)

    await eventually(is_there, seconds=5)
    return await status(kube, name)


async def test_a_pod_is_bound_runs_with_an_address_and_succeeds_in_time(
    fake: FakeKubernetes, kube: Client, clock: VirtualClock
) -> None:
    async with run_kubelet(fake, complete_after(30), clock):
        await make(kube)
        running = await until(kube, "Running")
        result = await kube.get(PODS, "one", namespace="default")
        assert result["spec"]["nodeName"] == "simulated"
        assert running["podIP"].startswith("10.")
        assert "running" in running["containerStatuses"][0]["state"]
        await clock.advance(29)
        assert (await status(kube))["phase"] == "Running"
        await clock.advance(1)
        outcome = await until(kube, "Succeeded")
        assert outcome["podIP"] == running["podIP"]
        assert outcome["containerStatuses"][0]["state"]["terminated"] == {
            "exitCode": 0,
            "reason": "Completed",
            "startedAt": "2026-01-01T00:00:00Z",
            "finishedAt": "2026-01-01T00:00:30Z",
        }


async def test_a_failure_has_its_exit_code_reason_and_termination_message(
    fake: FakeKubernetes, kube: Client, clock: VirtualClock
) -> None:
    course = PodScript(run=0, exit_code=137, reason="OOMKilled", message="the last words")
    async with run_kubelet(fake, lambda _: course, clock):
        await make(kube)
        failed = await until(kube, "Failed")
    terminated = failed["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (137, "OOMKilled")
    assert terminated["message"] == "the last words"


async def test_containers_restart_in_place_with_backoff_by_the_restart_policy(
    fake: FakeKubernetes, kube: Client, clock: VirtualClock
) -> None:
    def fail_twice(pod: SimulatedPod) -> PodScript:
        return PodScript(run=1, exit_code=0 if pod.restarts == 2 else 3)

    async with run_kubelet(fake, fail_twice, clock):
        await make(kube, policy="OnFailure")
        await until(kube, "Running")
        await clock.advance(1)

        async def restart_count_is(times: int) -> bool:
            return bool((await status(kube))["containerStatuses"][0]["restartCount"] == times)

        await eventually(lambda: restart_count_is(1), seconds=5)
        await clock.advance(1)

        async def waits() -> bool:
            state = (await status(kube))["containerStatuses"][0]["state"]
            return bool(state.get("waiting", {}).get("reason") == "CrashLoopBackOff")

        await eventually(waits, seconds=5)
        last = (await status(kube))["containerStatuses"][0]["lastState"]["terminated"]
        assert last["exitCode"] == 3
        await clock.advance(9)
        assert await waits()
        await clock.advance(1)
        await eventually(lambda: restart_count_is(2), seconds=5)
        await clock.advance(1)
        result = await until(kube, "Succeeded")
        assert result["containerStatuses"][0]["restartCount"] == 2


async def test_a_deleted_pod_ends_with_143_and_is_removed(
    fake: FakeKubernetes, kube: Client, clock: VirtualClock
) -> None:
    async with run_kubelet(fake, lambda _: PodScript(stop=5), clock):
        await make(kube)
        await until(kube, "Running")
        await kube.delete(PODS, "one", namespace="default")
        since = fake.cluster.storage.version
        began = clock.monotonic()

        async def is_gone() -> bool:
            await clock.advance(0.1)
            try:
                await status(kube)
            except NotFound:
                return True
            return False

        await eventually(is_gone, seconds=5)
        assert clock.monotonic() - began >= 5
        changes = list(fake.cluster.storage.since(fake.cluster.kind_by_label("pods"), since))
    assert changes[0].new is not None
    last = changes[0].new["status"]
    assert last["phase"] == "Failed"
    assert last["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143


async def test_unschedulable_and_unstartable_pods_show_the_reason(
    fake: FakeKubernetes, kube: Client, clock: VirtualClock
) -> None:
    courses = {
        "nowhere": PodScript(
            unschedulable="0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        ),
        "no-image": PodScript(waiting="ErrImagePull"),
    }
    async with run_kubelet(fake, lambda pod: courses[pod.key.name], clock):
        await make(kube, "nowhere")
        await make(kube, "no-image")

        async def has_conditions() -> bool:
            return "conditions" in await status(kube, "nowhere") and "containerStatuses" in (
                await status(kube, "no-image")
            )

        await eventually(has_conditions, seconds=5)
        condition = (await status(kube, "nowhere"))["conditions"][0]
        assert (condition["type"], condition["status"]) == ("PodScheduled", "False")
        assert "Insufficient nvidia.com/gpu" in condition["message"]
        state = (await status(kube, "no-image"))["containerStatuses"][0]["state"]
        assert state["waiting"]["reason"] == "ErrImagePull"
        assert not (await kube.get(PODS, "nowhere", namespace="default"))["spec"].get("nodeName")


async def test_an_evicted_pod_has_a_reason_and_no_container_statuses(
    fake: FakeKubernetes, kube: Client, clock: VirtualClock
) -> None:
    course = PodScript(run=0, pod_reason="Evicted", message="The node was low on resource: memory.")
    async with run_kubelet(fake, lambda _: course, clock):
        await make(kube)
        failed = await until(kube, "Failed")
    assert failed["reason"] == "Evicted"
    assert failed["message"] == "The node was low on resource: memory."
    assert not failed.get("containerStatuses")


async def test_a_pod_that_is_already_terminating_is_not_deleted_again(
    fake: FakeKubernetes, kube: Client, clock: VirtualClock
) -> None:
    async with run_kubelet(fake, complete_after(10), clock):
        await make(kube)
        await until(kube, "Running")
        result = merge_patch({"status": {"phase": "Failed", "reason": "Preempting"}})
        await kube.patch(PODS, "one", result, namespace="default", subresource="status")
        before = fake.counts["patch", "pods/status"]
        await make(kube, "two")
        await until(kube, "Running", "two")
        await clock.advance(10)
        await until(kube, "Succeeded", "two")
        assert (await status(kube))["phase"] == "Failed"
        assert fake.counts["patch", "pods/status"] == before + 2


async def test_a_status_that_the_server_refused_is_written_later(
    fake: FakeKubernetes, kube: Client, clock: VirtualClock
) -> None:
    fake.faults.append(ApiFault(verb="patch", resource="pods/status", status=500))
    async with run_kubelet(fake, run_forever, clock):
        await make(kube)

        async def runs_later() -> bool:
            await clock.advance(0.1)
            return bool((await status(kube))["phase"] == "Running")

        await eventually(runs_later, seconds=5)
    assert fake.counts["patch", "pods/status"] == 2


async def test_a_successor_of_the_same_name_is_a_new_pod(
    fake: FakeKubernetes, kube: Client, clock: VirtualClock
) -> None:
    async with run_kubelet(fake, run_forever, clock):
        await make(kube)
        first = await until(kube, "Running")
        options = DeleteOptions(grace=0)
        await kube.delete(PODS, "one", namespace="default", options=options)
        await make(kube)
        second = await until(kube, "Running")
    assert first["podIP"] != second["podIP"]
