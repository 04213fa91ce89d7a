"""The pod of ``--builder kubernetes``: its manifest, what it waits for, when it is deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.builder.buildkit.pod import PodOptions, render_pod, run_buildkit_pod
from danlu.errors import DanluError, MachineError, OutsideError
from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from danlu.kube.errors import Forbidden
from danlu.kube.patch import merge_patch
from danlu.kube.resources import PODS
from danlu.kube.types import Manifest
from tests.fakes.kubernetes import ApiFault, FakeKubernetes

pytestmark = pytest.mark.anyio

KEPT = PodOptions("team/buildkit:1", idle_seconds=600, namespace="default", ready_seconds=10)
DELETED = PodOptions("team/buildkit:1", namespace="default", ready_seconds=10)
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def waiting(reason: str, message: str = "") -> Manifest:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "buildkitd", "state": state}]}


@pytest.fixture(autouse=True)
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``kubectl`` that stays connected."""
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\nexec cat\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.fixture
async def server() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes() as server:
        yield server


@pytest.fixture
async def client(server: FakeKubernetes) -> AsyncIterator[Client]:
    async with Client(ClusterConfig(server=server.url)) as client:
        yield client


async def list_pods(client: Client) -> list[Manifest]:
    result = (await client.list(PODS)).items
    return [pod for pod in result if "deletionTimestamp" not in pod["metadata"]]


async def set_status(client: Client, status: Manifest) -> None:
    """Report ``status`` for the daemon's pod as soon as it exists."""
    while not (pods := await list_pods(client)):
        await anyio.sleep(0.01)
    name = pods[0]["metadata"]["name"]
    patch = merge_patch({"status": status})
    await client.patch(PODS, name, patch, namespace="default", subresource="status")


async def run_pod(
    client: Client, options: PodOptions, status: Manifest | None = None
) -> tuple[str, list[str]]:
    """Run a pod that gets ``status``; return its address and the reported messages."""
    reported: list[str] = []
    address = ""
    async with anyio.create_task_group() as group:
        if status is not None:
            group.start_soon(set_status, client, status)
        async with run_buildkit_pod(options, client.config, reported.append) as address:
            assert len(await list_pods(client)) == 1
        group.cancel_scope.cancel()
    return address, reported


async def fail_pod(client: Client, options: PodOptions, status: Manifest | None) -> DanluError:
    with pytest.raises(BaseExceptionGroup) as caught:
        await run_pod(client, options, status)
    error = caught.value.exceptions[0]
    assert isinstance(error, OutsideError), error
    return error


async def test_kept_pod_is_used_again_and_its_address_names_it(client: Client) -> None:
    first, reported = await run_pod(client, KEPT, READY)
    assert first.startswith("kube-pod://danlu-buildkit-")
    assert "namespace=default&container=buildkitd" in first
    assert reported[0].startswith("created pod")
    assert await run_pod(client, KEPT) == (first, [])
    assert len(await list_pods(client)) == 1


async def test_pod_that_has_ended_is_replaced(client: Client) -> None:
    await run_pod(client, KEPT, READY)
    (old,) = await list_pods(client)
    await set_status(client, {"phase": "Succeeded", "conditions": []})

    async def report_ready() -> None:
        while [pod["metadata"]["uid"] for pod in await list_pods(client)] in ([], [old_uid]):
            await anyio.sleep(0.01)
        await set_status(client, READY)

    old_uid = old["metadata"]["uid"]
    async with anyio.create_task_group() as group:
        group.start_soon(report_ready)
        async with run_buildkit_pod(KEPT, client.config, print):
            (new,) = await list_pods(client)
    assert new["metadata"]["uid"] != old_uid


async def test_pod_that_is_not_kept_is_deleted_after_the_build(client: Client) -> None:
    first, _ = await run_pod(client, DELETED, READY)
    assert await list_pods(client) == []
    second, _ = await run_pod(client, DELETED, READY)
    assert first != second


@pytest.mark.parametrize("options", [KEPT, DELETED], ids=["kept", "deleted"])
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (waiting("ImagePullBackOff", "Back-off pulling"), "cannot start: ImagePullBackOff: cannot"),
        (waiting("CreateContainerConfigError"), "cannot start: CreateContainerConfigError"),
        (
            {
                "phase": "Failed",
                "containerStatuses": [
                    {
                        "name": "buildkitd",
                        "state": {"terminated": {"exitCode": 7, "reason": "Error"}},
                    }
                ],
            },
            "ended with exit code 7 (Error)",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "ended: Evicted: disk"),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "",
)
async def test_pod_that_cannot_start_is_reported_and_deleted(
    options: PodOptions, status: dict[str, Any], message: str, client: Client
) -> None:
    error = await fail_pod(client, options, status)
    assert message in error.message
    assert error.hint
    assert await list_pods(client) == []


async def test_unschedulable_pod_is_waited_for_then_deleted(client: Client) -> None:
    reason = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"phase": "Pending", "conditions": [{**reason, "message": "0/3 nodes\nare available"}]}
    impatient = PodOptions("team/buildkit:1", namespace="default", ready_seconds=1.5)
    error = await fail_pod(client, impatient, status)
    assert "not ready after 2 s: Unschedulable: 0/3 nodes\\nare available" in error.message
    assert await list_pods(client) == []


async def test_interrupted_build_leaves_no_pod(client: Client) -> None:
    for options in (KEPT, DELETED):
        async with anyio.create_task_group() as group:
            group.start_soon(run_pod, client, options)
            while not await list_pods(client):
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        assert await list_pods(client) == []


async def test_pod_that_may_not_be_created_is_an_error(
    server: FakeKubernetes, client: Client
) -> None:
    server.faults.append(ApiFault(verb="create", resource="pods", status=403))
    error = await fail_pod(client, KEPT, None)
    assert isinstance(error, Forbidden)
    assert "create danlu-buildkit-" in error.message
    assert error.exit_code == 3


async def test_missing_kubectl_is_reported_with_a_remedy(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MachineError, match="kubectl"):
        async with run_buildkit_pod(KEPT, client.config, print):
            pass
    assert await list_pods(client) == []


def test_pod_gives_steps_no_rights_in_the_cluster() -> None:
    spec = render_pod(KEPT, "name", "default")["spec"]
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    assert container["securityContext"]["runAsUser"] == 1000
    assert "privileged" not in container["securityContext"]
    assert container["command"][4:6] == ["600", "rootlesskit"]


def test_privileged_pod_runs_the_daemon_as_root() -> None:
    options = PodOptions("team/buildkit:1", privileged=True)
    (container,) = render_pod(options, "name", "default")["spec"]["containers"]
    assert container["securityContext"] == {"privileged": True}
    assert container["command"][4:] == ["600", "buildkitd"]
