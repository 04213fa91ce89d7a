"""Launchers that reach their workers with a real ssh, in pods of a real node with two Open MPIs."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.kube.client import Client
from danlu.kube.resources import PODS
from danlu.kube.types import Manifest
from danlu.kube.watch import ListOptions
from danlu.operator.types import job_resource
from danlu.training.registry import list_kinds
from danlu.training.rendering import JOB_NAME
from tests.conftest import ROOT, Danlu
from tests.kube.objects import eventually
from tests.operator.cluster.conftest import RunningCluster
from tests.operator.cluster.images import push_image
from tests.operator.cluster.operator_process import install, run_operator

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.slow]

KIND = "MPIJob"
(V2BETA1,) = list_kinds((KIND,), {KIND: "v2beta1"})
JOBS = job_resource(V2BETA1).with_model(Manifest)
SPACE = "default"
#: What the MPI operator's base image does (``build/base/openmpi.Dockerfile``). A layer of danlu has
#: no host keys under their usual names.
BUILD = """\
def build():
    base(os="{os}")
    install.apt_packages(
        name=["openmpi-bin", "libopenmpi-dev", "g++", "openssh-server", "openssh-client"]
    )
    io.copy("pi.cc", "/src/")
    run([
        "mpic++ /src/pi.cc -o /usr/local/bin/pi",
        "ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/host_key",
        "echo 'HostKey /etc/ssh/host_key' >>/etc/ssh/sshd_config",
        "echo 'StrictHostKeyChecking no' >>/etc/ssh/ssh_config",
        "echo 'UserKnownHostsFile /dev/null' >>/etc/ssh/ssh_config",
        "mkdir -p /run/sshd",
    ])
"""


@pytest.fixture
async def operator(cluster: RunningCluster, client: Client, tmp_path: Path) -> AsyncIterator[None]:
    """An operator of v2beta1; later ones find v1 again."""
    await install(client, {KIND: "v2beta1"})
    flags = ("--enable-scheme=mpijob", "--mpijob-version=v2beta1")
    try:
        async with run_operator(cluster.kubeconfig, tmp_path / "operator.log", *flags):
            yield
    finally:
        await install(client)


async def run_job(
    client: Client, image: str, launcher: list[str], **spec: Any
) -> Mapping[str, Any]:
    """Run a job to its end, and return its status."""

    def describe(command: Mapping[str, Any]) -> dict[str, Any]:
        return {"template": {"spec": {"containers": [{"name": "pi", "image": image, **command}]}}}

    replicas = {
        "Launcher": describe({"command": launcher}),
        "Worker": {"replicas": 2, **describe({})},
    }
    run = {"cleanPodPolicy": "Running"}
    document = JOBS.to_manifest(
        {
            "metadata": {"name": "pi", "namespace": SPACE},
            "spec": {"runPolicy": run, **spec, "mpiReplicaSpecs": replicas},
        }
    )
    await client.create(JOBS, document)
    found: dict[str, Any] = {}

    async def has_ended() -> bool:
        job = await client.get(JOBS, "pi", namespace=SPACE)
        found.update(job.get("status") or {})
        types = [each["type"] for each in found.get("conditions", ()) if each["status"] == "True"]
        return bool({"Succeeded", "Failed"} & set(types))

    await eventually(has_ended, seconds=300)
    return found


async def read_launcher(client: Client) -> str:
    lines = [line.data.decode() async for line in client.read_log("pi-launcher", namespace=SPACE)]
    return "\n".join(lines)


async def delete_job(client: Client) -> None:
    await client.delete(JOBS, "pi", namespace=SPACE)

    async def is_gone() -> bool:
        pods = await client.list(PODS, ListOptions(SPACE, labels=f"{JOB_NAME}=pi"))
        return not pods.items

    await eventually(is_gone, seconds=120)


@pytest.mark.parametrize("os", ["debian12", "debian13"], ids=["Open MPI 4", "Open MPI 5"])
async def test_ranks_run_on_the_hosts_that_the_job_names(
    cluster: RunningCluster,
    client: Client,
    operator: None,
    danlu: Danlu,
    tmp_path: Path,
    os: str,
) -> None:
    directory = tmp_path / "pi"
    directory.mkdir()
    shutil.copy(ROOT / "tests/training/examples/v2beta1/pi.cc", directory)
    (directory / "build.envd").write_text(BUILD.format(os=os))
    name = f"{cluster.registry}/team/pi-{os}"
    image = await anyio.to_thread.run_sync(lambda: push_image(directory, name, danlu))
    workers = ["worker-0", "worker-1"]
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, workers),
        ({"slotsPerWorker": 2}, ["worker-0", *workers, "worker-1"]),
        ({"runLauncherAsWorker": True}, ["launcher", *workers]),
    ]
    for spec, hosts in cases:
        command = ["mpirun", "-n", str(len(hosts)), "/usr/local/bin/pi"]
        status = await run_job(client, image, command, **spec)
        log = await read_launcher(client)
        assert status["conditions"][-1]["reason"] == "MPIJobSucceeded", log + cluster.node.log
        ranks = sorted(re.findall(r"Rank \d+ on host \S+", log))
        placed = [line.partition(" on host pi-")[2] for line in ranks]
        assert sorted(placed) == sorted(hosts), log
        assert "pi is approximately 3.14" in log
        await delete_job(client)
