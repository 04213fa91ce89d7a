"""What a cluster does to the pods of a running job, and what its user then reads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.kube.client import Client
from danlu.kube.patch import merge_patch
from danlu.kube.resources import PODS, Resource
from danlu.kube.transport import ApiRequest
from danlu.kube.types import Manifest
from danlu.operator.types import job_resource
from danlu.training.frameworks.pytorch import INIT_IMAGE, PyTorchFramework
from tests.conftest import Danlu, program_in
from tests.kube.objects import eventually
from tests.operator.clients.kubectl import find_kubectl
from tests.operator.cluster.conftest import RunningCluster
from tests.operator.cluster.images import PAUSE
from tests.operator.cluster.node import NAME
from tests.operator.cluster.operator_process import install, run_operator

pytestmark = [pytest.mark.anyio, pytest.mark.real]

JOBS = job_resource(PyTorchFramework()).with_model(Manifest)
NODES = Resource("", "v1", "nodes", "Node", Manifest, namespaced=False)
#: Runs until a file says that it may end.
WAIT = "until [ -e /shared/end ]; do sleep 0.2; done"
#: Saves when it is told to end, and goes on from there.
SAVE = """\
trap 'echo > /shared/saved; exit 143' TERM
[ -e /shared/saved ] && exit 0
echo > /shared/started
while :; do sleep 0.2; done"""
FILL = "/busybox cat /dev/zero > /data/model"


class DisruptedJob:
    """A job whose pods run a script in a directory that they share with the test."""

    def __init__(self, client: Client, danlu: Danlu, name: str, shared: Path) -> None:
        self.name = name
        self.shared = shared
        self._client = client
        self._danlu = danlu

    async def submit(
        self, script: str, *, workers: int = 0, restart: str = "Never", **container: Any
    ) -> None:
        """Create the job: a master, and workers that run the same."""
        volumes = [
            {"name": "shared", "hostPath": {"path": str(self.shared)}},
            {"name": "data", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        ]
        mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("shared", "data")]
        content = {
            "name": "pytorch",
            "image": PAUSE,
            "command": ["sh", "-c", script],
            "volumeMounts": mounts,
            **container,
        }
        pod = {"containers": [content], "volumes": volumes, "terminationGracePeriodSeconds": 20}
        replica = {"replicas": 1, "restartPolicy": restart, "template": {"spec": pod}}
        replicas = {"Master": replica}
        if workers:
            replicas["Worker"] = {**replica, "replicas": workers}
        metadata = {"name": self.name, "namespace": "default"}
        spec = {"pytorchReplicaSpecs": replicas, "runPolicy": {"cleanPodPolicy": "None"}}
        await self._client.create(JOBS, JOBS.to_manifest({"metadata": metadata, "spec": spec}))

    async def pods(self) -> dict[str, Manifest]:
        """Return the job's pods by name."""
        found = (await self._client.list(PODS)).items
        named = {pod["metadata"]["name"]: pod for pod in found}
        return {name: named[name] for name in named if name.startswith(f"{self.name}-")}

    async def show(self) -> dict[str, Any]:
        """Return what ``danlu jobs show`` says."""
        words = ("jobs", "show", self.name, "--on", "kubernetes")
        text = await anyio.to_thread.run_sync(lambda: self._danlu(*words, cwd=self.shared))
        print(text.stdout)
        result = await anyio.to_thread.run_sync(
            lambda: self._danlu(*words, "--format", "json", cwd=self.shared)
        )
        shown: dict[str, Any] = json.loads(result.stdout)
        return shown

    async def wait_for_state(self, state: str) -> None:
        async def has_state() -> bool:
            job = await self._client.get(JOBS, self.name, namespace="default")
            conditions = (job.get("status") or {}).get("conditions") or ()
            held = [entry["type"] for entry in conditions if entry["status"] == "True"]
            assert not {"Succeeded", "Failed"} - {state} & set(held), conditions
            return state in held

        await eventually(has_state, seconds=120)

    async def wait_for_words(self, *words: str) -> None:
        """Wait until ``danlu jobs show`` says all of these words."""

        async def says_so() -> bool:
            shown = json.dumps(await self.show())
            return all(word in shown for word in words)

        await eventually(says_so, seconds=120)


@pytest.fixture
async def job(
    cluster: RunningCluster,
    client: Client,
    tmp_path: Path,
    real_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> AsyncIterator[DisruptedJob]:
    """A job that is not submitted yet, with a running operator."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv("DANLU_HOME", str(real_home))
    shared = tmp_path / "shared"
    shared.mkdir()
    name = request.node.name.removeprefix("test_").replace("_", "-")[:30].rstrip("-")
    await install(client)
    flag = f"{INIT_IMAGE.flag}={PAUSE}"
    async with run_operator(cluster.kubeconfig, tmp_path / "operator.log", flag):
        yield DisruptedJob(client, program_in(real_home), name, shared)
        await client.delete(JOBS, name, namespace="default")


async def test_a_drained_node(job: DisruptedJob, cluster: RunningCluster) -> None:
    kubectl = [find_kubectl(), f"--kubeconfig={cluster.kubeconfig}"]
    await job.submit(WAIT)
    await job.wait_for_state("Running")
    (before,) = (await job.pods()).values()
    selection = f"--pod-selector=training.kubeflow.org/job-name={job.name}"
    await anyio.run_process([*kubectl, "drain", NAME, selection, "--delete-emptydir-data"])
    try:
        await job.wait_for_words("Unschedulable", "were unschedulable")
    finally:
        await anyio.run_process([*kubectl, "uncordon", NAME])
    (job.shared / "end").touch()
    await job.wait_for_state("Succeeded")
    (after,) = (await job.pods()).values()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    await job.show()


async def test_an_evicted_pod(job: DisruptedJob, client: Client) -> None:
    await job.submit(WAIT, workers=1)
    await job.wait_for_state("Running")
    before = await job.pods()
    name = f"{job.name}-worker-0"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    path = PODS.path(namespace="default", name=name, subresource="eviction")
    await client.transport.send(
        ApiRequest(method="POST", path=path, body=json.dumps(body).encode())
    )

    async def is_replaced() -> bool:
        pods = await job.pods()
        return name in pods and pods[name]["metadata"]["uid"] != before[name]["metadata"]["uid"]

    await eventually(is_replaced, seconds=60)
    (job.shared / "end").touch()
    await job.wait_for_state("Succeeded")
    master = f"{job.name}-master-0"
    assert (await job.pods())[master]["metadata"]["uid"] == before[master]["metadata"]["uid"]
    await job.show()


async def test_a_reclaimed_node(job: DisruptedJob, client: Client) -> None:
    await job.submit(SAVE)
    await eventually((job.shared / "started").exists, seconds=60)
    # What the termination handlers of clouds do.
    taints = [{"key": "danlu.test/reclaimed", "effect": "NoSchedule"}]
    await client.patch(NODES, NAME, merge_patch({"spec": {"taints": taints}}))
    (name,) = await job.pods()
    await client.delete(PODS, name, namespace="default")
    try:
        await job.wait_for_words("Unschedulable", "untolerated taint")
    finally:
        await client.patch(NODES, NAME, merge_patch({"spec": {"taints": []}}))
    assert (job.shared / "saved").exists()
    await job.wait_for_state("Succeeded")
    await job.show()


async def test_an_image_that_does_not_exist(job: DisruptedJob, cluster: RunningCluster) -> None:
    image = f"{cluster.registry}/team/absent:1"
    await job.submit(WAIT, image=image)
    await job.wait_for_words("ImagePullBackOff", image)


async def test_a_full_volume(job: DisruptedJob) -> None:
    await job.submit(FILL)
    await job.wait_for_state("Failed")
    shown = await job.show()
    assert shown["state"] == "Failed"
    assert "No space left on device" in shown["status"]["firstFailure"]["message"]


async def test_names_that_resolve_late(job: DisruptedJob, cluster: RunningCluster) -> None:
    (job.shared / "end").touch()
    with cluster.services.hide(f"{job.name}-master-0"):
        await job.submit(WAIT, workers=1)

        async def worker_waits() -> bool:
            pod = (await job.pods()).get(f"{job.name}-worker-0", {})
            states = pod.get("status", {}).get("initContainerStatuses") or ()
            return any("running" in state["state"] for state in states)

        await eventually(worker_waits, seconds=60)
        await job.show()
    await job.wait_for_state("Succeeded")
    assert all(
        state["restartCount"] == 0
        for pod in (await job.pods()).values()
        for state in pod["status"].get("initContainerStatuses") or ()
    )
