"""The start of an environment's pod: waiting, messages and cleanup."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from danlu.engine.environment_directory import EnvironmentSpec
from danlu.engine.kubernetes.pod import EnvironmentPod
from danlu.engine.kubernetes.settings import PodSettings, render_pod
from danlu.errors import OutsideError
from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from danlu.kube.patch import merge_patch
from danlu.kube.resources import PODS
from danlu.kube.types import Manifest
from tests.fakes.kubernetes import FakeKubernetes

pytestmark = pytest.mark.anyio

SETTINGS = PodSettings("danlu-digits-0", "", "default", "registry/digits@sha256:1")
SPEC = EnvironmentSpec("digits", "sha256:1", datetime(2026, 1, 1, tzinfo=UTC))
RUNNING = {
    "phase": "Running",
    "containerStatuses": [{"name": "environment", "state": {"running": {}}}],
}

UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        }
    ],
}


def make_waiting(reason: str, message: str = "") -> Manifest:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "environment", "state": state}]}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with (
        FakeKubernetes() as server,
        Client(ClusterConfig(server=server.url)) as client,
    ):
        yield client


async def list_uids(client: Client) -> list[str]:
    result = (await client.list(PODS)).items
    return [pod["metadata"]["uid"] for pod in result if "deletionTimestamp" not in pod["metadata"]]


async def set_status(client: Client, status: Manifest) -> None:
    """Report a status of the pod as soon as it exists."""
    while not await list_uids(client):
        await anyio.sleep(0.01)
    patch = merge_patch({"status": status})
    await client.patch(PODS, SETTINGS.name, patch, namespace="default", subresource="status")


async def start_pod(
    client: Client, *statuses: Manifest, spec: EnvironmentSpec = SPEC
) -> tuple[bool, list[str]]:
    """Start the pod, which gets one status after the other when the one before was reported."""
    reported: list[str] = []

    async def set_statuses() -> None:
        for index, status in enumerate(statuses):
            while len(reported) < index:
                await anyio.sleep(0.01)
            await set_status(client, status)

    pod = EnvironmentPod(client, SETTINGS)
    async with anyio.create_task_group() as group:
        group.start_soon(set_statuses)
        created = await pod.ensure_running(render_pod(spec, SETTINGS), reported.append)
    return created, reported


async def test_reasons_are_reported_as_kubernetes_gives_them(client: Client) -> None:
    created, reported = await start_pod(client, {}, UNSCHEDULABLE, RUNNING)
    assert created
    assert reported[-1] == (
        "pod danlu-digits-0: Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
        " (request less with --cpus, --memory or --gpus, or make room on a node)"
    )


async def test_a_pod_that_does_not_start_in_time_is_deleted(client: Client) -> None:
    pod = EnvironmentPod(client, SETTINGS)
    async with anyio.create_task_group() as group:
        group.start_soon(set_status, client, UNSCHEDULABLE)
        with pytest.raises(OutsideError) as failure:
            await pod.ensure_running(render_pod(SPEC, SETTINGS), lambda _: None, limit=1)
    assert failure.value.message == (
        "pod danlu-digits-0 did not start within 1.0 s: Unschedulable:"
        " 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    )
    assert "--cpus" in failure.value.hint
    assert await list_uids(client) == []


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (make_waiting("ImagePullBackOff", "Back-off"), "ImagePullBackOff: cannot pull the image"),
        (make_waiting("CreateContainerConfigError"), "cannot start: CreateContainerConfigError"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "low on memory"),
    ],
)
async def test_a_pod_that_cannot_start_is_deleted(
    client: Client, status: dict[str, Any], message: str
) -> None:
    with pytest.raises(BaseExceptionGroup) as failure:
        await start_pod(client, status)
    (error,) = failure.value.exceptions
    assert isinstance(error, OutsideError)
    assert message in error.message
    assert await list_uids(client) == []


async def test_a_running_pod_is_taken_over(client: Client) -> None:
    assert (await start_pod(client, RUNNING))[0]
    before = await list_uids(client)
    assert await start_pod(client) == (False, [])
    assert await list_uids(client) == before


async def test_a_pod_created_from_other_settings_is_replaced(client: Client) -> None:
    await start_pod(client, RUNNING)
    before = await list_uids(client)
    other = EnvironmentSpec("digits", "sha256:1", SPEC.created, environment={"A": "1"})

    async def run_the_new_one() -> None:
        while await list_uids(client) in ([], before):
            await anyio.sleep(0.01)
        await set_status(client, RUNNING)

    async with anyio.create_task_group() as group:
        group.start_soon(run_the_new_one)
        assert (await start_pod(client, spec=other))[0]
    assert await list_uids(client) != before


async def test_an_interrupted_start_deletes_the_pod(client: Client) -> None:
    pod = EnvironmentPod(client, SETTINGS)
    async with anyio.create_task_group() as group:

        def interrupt(reason: str) -> None:
            group.cancel_scope.cancel()

        await pod.ensure_running(render_pod(SPEC, SETTINGS), interrupt)
    assert await list_uids(client) == []
