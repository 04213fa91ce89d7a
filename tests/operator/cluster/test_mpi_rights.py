"""A launcher may run its agent in its own workers, by a real kubectl, and do nothing else."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from danlu.kube.client import Client
from danlu.kube.resources import NAMESPACES, PODS, SERVICE_ACCOUNTS, Resource
from danlu.kube.types import Manifest
from tests.kube.objects import eventually
from tests.operator.cluster.conftest import RunningCluster
from tests.operator.cluster.images import PAUSE
from tests.operator.cluster.operator_process import install, run_operator

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.needs("kubectl", "root")]

SPACE = "rights"
JOBS = Resource("kubeflow.org", "v1", "mpijobs", "MPIJob", Manifest)


def waiting() -> Manifest:
    """A container that waits, of an image that the node has."""
    return {
        "name": "mpi",
        "image": PAUSE,
        "imagePullPolicy": "Never",
        "command": ["/busybox", "tail", "-f", "/dev/null"],
    }


def manifest(name: str) -> Manifest:
    replicas = {
        kind: {"replicas": 1, "template": {"spec": {"containers": [waiting()]}}}
        for kind in ("Launcher", "Worker")
    }
    metadata = {"name": name, "namespace": SPACE}
    return JOBS.to_manifest({"metadata": metadata, "spec": {"mpiReplicaSpecs": replicas}})


@pytest.fixture
async def jobs(cluster: RunningCluster, client: Client, tmp_path: Path) -> AsyncIterator[None]:
    """Two jobs whose workers run."""
    await install(client)
    await client.create(NAMESPACES, NAMESPACES.to_manifest({"metadata": {"name": SPACE}}))
    image = f"--mpi-kubectl-delivery-image={PAUSE}"
    async with run_operator(cluster.kubeconfig, tmp_path / "operator.log", image):
        for name in ("mine", "other"):
            await client.create(JOBS, manifest(name))

        async def run() -> bool:
            names = ("mine-worker-0", "other-worker-0")
            results = {
                pod["metadata"]["name"]: pod["status"].get("phase")
                for pod in (await client.list(PODS)).items
            }
            return all(results.get(name) == "Running" for name in names)

        await eventually(run, seconds=120)
        yield


async def token(client: Client, account: str) -> str:
    """A token of a service account, as its pods have one."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    request["metadata"] = {"namespace": SPACE}
    result = await client.create(SERVICE_ACCOUNTS, request, name=account, subresource="token")
    found: str = result["status"]["token"]
    return found


def kubectl(cluster: RunningCluster, token: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("kubectl")
    assert program is not None
    reached = [f"--server={cluster.access.server}", f"--token={token}", f"--namespace={SPACE}"]
    authority = f"--certificate-authority={cluster.kubeconfig.parent}/ca.crt"
    # Another's kubeconfig would add its own credentials.
    command = [program, "--kubeconfig=/dev/null", *reached, authority, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def test_a_launcher_can_run_commands_only_in_its_own_workers(
    cluster: RunningCluster, client: Client, jobs: None
) -> None:
    mine = await token(client, "mine-launcher")
    command = ("--", "/busybox", "echo", "said in a worker")
    result = kubectl(cluster, mine, "exec", "mine-worker-0", *command)
    assert (result.stdout, result.returncode) == ("said in a worker\n", 0), result.stderr

    refused = kubectl(cluster, mine, "exec", "other-worker-0", *command)
    assert refused.returncode != 0
    assert "forbidden" in refused.stderr.lower()
    for words in (("delete", "pod", "mine-worker-0"), ("get", "secrets"), ("get", "mpijobs")):
        denied = kubectl(cluster, mine, *words)
        assert "forbidden" in denied.stderr.lower(), words
