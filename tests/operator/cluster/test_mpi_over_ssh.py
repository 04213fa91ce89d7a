"""Launchers that reach their workers with a real ssh, in pods of a real node with two Open MPIs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.kube.client import Client
from danlu.kube.resources import PODS, Resource
from danlu.kube.types import Manifest
from danlu.kube.watch import ListOptions
from danlu.operator.types import job_resource, runtime_resource
from danlu.training.document import read_manifest_file
from danlu.training.registry import TRAIN_JOB, list_kinds
from danlu.training.rendering import JOB_NAME
from danlu.training.train_job.runtimes import installed_runtime
from tests.conftest import ROOT, Danlu
from tests.kube.objects import eventually
from tests.operator.cluster.conftest import RunningCluster
from tests.operator.cluster.images import push_image
from tests.operator.cluster.operator_process import install, run_operator

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.slow]

KIND = "MPIJob"
(V2BETA1,) = list_kinds((KIND,), {KIND: "v2beta1"})
JOBS = job_resource(V2BETA1).with_model(Manifest)
TRAIN_JOBS = job_resource(TRAIN_JOB).with_model(Manifest)
EXAMPLES = ROOT / "tests/training/examples/v2beta1"
SPACE = "default"
#: The MPI operator's base image (``build/base``), without its ``StrictModes no`` for root. danlu's
#: layers have no host keys under their usual names.
BUILD = """\
def build():
    base(os="{os}")
    install.apt_packages(name={packages} + ["g++", "openssh-server", "openssh-client"])
    io.copy("pi.cc", "/src/")
    io.copy("sshd_config", "/src/")
    run([
        "mkdir -p /run/sshd",
        "ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/host_key",
        "printf 'HostKey /etc/ssh/host_key\\nPort 2222\\n' >>/etc/ssh/sshd_config",
        "echo 'StrictHostKeyChecking no' >>/etc/ssh/ssh_config",
        "echo 'UserKnownHostsFile /dev/null' >>/etc/ssh/ssh_config",
        "echo 'Port 2222' >>/etc/ssh/ssh_config",
        "useradd -m -u 1000 mpiuser",
        "cp /src/sshd_config /home/mpiuser/.sshd_config",
        "mpic++ /src/pi.cc -o /home/mpiuser/pi",
    ])
"""
OPEN_MPI, MPICH = ("openmpi-bin", "libopenmpi-dev"), ("mpich", "libmpich-dev")
SSHD_CONFIG = """\
PidFile /home/mpiuser/sshd.pid
HostKey /home/mpiuser/.ssh/id_rsa
StrictModes no
Port 2222
"""


@pytest.fixture
async def operator(cluster: RunningCluster, client: Client, tmp_path: Path) -> AsyncIterator[None]:
    """An operator of v2beta1; later ones find v1 again."""
    await install(client, {KIND: "v2beta1"})
    flags = ("--enable-scheme=mpijob,trainjob", "--mpijob-version=v2beta1")
    try:
        async with run_operator(cluster.kubeconfig, tmp_path / "operator.log", *flags):
            yield
    finally:
        await install(client)


async def push_pi(
    cluster: RunningCluster, danlu: Danlu, parent: Path, os: str, *packages: str
) -> str:
    """Return the image of the MPI operator's example with a distribution's MPI."""
    directory = parent / "pi"
    directory.mkdir()
    shutil.copy(EXAMPLES / "pi.cc", directory)
    (directory / "sshd_config").write_text(SSHD_CONFIG)
    names = list(packages or OPEN_MPI)
    (directory / "build.envd").write_text(BUILD.format(os=os, packages=json.dumps(names)))
    name = f"{cluster.registry}/team/pi-{os}-{names[0]}"
    return await anyio.to_thread.run_sync(lambda: push_image(directory, name, danlu))


def describe_job(image: str, launcher: list[str], **spec: Any) -> Manifest:
    """Return a job of root whose workers serve ssh by default."""

    def describe(command: Mapping[str, Any]) -> dict[str, Any]:
        return {"template": {"spec": {"containers": [{"name": "pi", "image": image, **command}]}}}

    workers = {"replicas": 2, **describe({})}
    replicas = {"Launcher": describe({"command": launcher}), "Worker": workers}
    run = {"runPolicy": {"cleanPodPolicy": "Running"}}
    metadata = {"name": "pi", "namespace": SPACE}
    return JOBS.to_manifest(
        {"metadata": metadata, "spec": {**run, **spec, "mpiReplicaSpecs": replicas}}
    )


async def run_job(
    client: Client, jobs: Resource[Manifest], document: Manifest, *, launcher: str
) -> tuple[str, str]:
    """Run a job to its end; return the reason of its last condition, and its launcher's log."""
    await client.create(jobs, document)
    name = document["metadata"]["name"]
    reasons: list[str] = []

    async def has_ended() -> bool:
        job = await client.get(jobs, name, namespace=SPACE)
        conditions = (job.get("status") or {}).get("conditions") or []
        ends = ("Succeeded", "Failed", "Complete")
        reasons[:] = [
            each["reason"]
            for each in conditions
            if each["type"] in ends and each["status"] == "True"
        ]
        return bool(reasons)

    await eventually(has_ended, seconds=300)
    pods = await client.list(PODS, ListOptions(SPACE, labels=f"{JOB_NAME}={name}"))
    (pod,) = [pod for pod in pods.items if pod["spec"]["hostname"] == launcher]
    lines = client.read_log(pod["metadata"]["name"], namespace=SPACE)
    log = "\n".join([line.data.decode() async for line in lines])
    await client.delete(jobs, name, namespace=SPACE)

    async def is_gone() -> bool:
        pods = await client.list(PODS, ListOptions(SPACE, labels=f"{JOB_NAME}={name}"))
        return not pods.items

    await eventually(is_gone, seconds=120)
    return reasons[0], log


def find_hosts(log: str) -> list[str]:
    """Return the hosts of the ranks, sorted."""
    assert "pi is approximately 3.14" in log, log
    return sorted(re.findall(r"Rank \d+ on host (\S+)", log))


@pytest.mark.parametrize(
    ("os", "packages", "implementation", "example"),
    [
        pytest.param("debian12", OPEN_MPI, "OpenMPI", "pi.yaml", id="Open MPI 4"),
        pytest.param("debian13", OPEN_MPI, "OpenMPI", "pi.yaml", id="Open MPI 5"),
        pytest.param("debian13", MPICH, "MPICH", "pi-mpich.yaml", id="MPICH"),
    ],
)
async def test_ranks_run_on_the_hosts_that_the_job_names(
    cluster: RunningCluster,
    client: Client,
    operator: None,
    danlu: Danlu,
    tmp_path: Path,
    os: str,
    packages: tuple[str, ...],
    implementation: str,
    example: str,
) -> None:
    image = await push_pi(cluster, danlu, tmp_path, os, *packages)
    workers = ["pi-worker-0", "pi-worker-1"]
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, workers),
        ({"slotsPerWorker": 2}, [*workers, *workers]),
    ]
    if packages == OPEN_MPI:  # MPICH calls the launcher with ssh, too
        cases.append(({"runLauncherAsWorker": True}, ["pi-launcher", *workers]))
    for spec, hosts in cases:
        command = ["mpirun", "-n", str(len(hosts)), "/home/mpiuser/pi"]
        document = describe_job(image, command, mpiImplementation=implementation, **spec)
        reason, log = await run_job(client, JOBS, document, launcher="pi-launcher")
        assert reason == "MPIJobSucceeded", log + cluster.node.log
        assert find_hosts(log) == sorted(hosts), log

    # The operator's own example, whose user is not root.
    text = (EXAMPLES / example).read_text().replace("cpu: 1\n", "cpu: 100m\n")
    text = re.sub(r"image: mpioperator/mpi-pi:\S+", f"image: {image}", text)
    job = dict(read_manifest_file(text, example).job)
    document = {**job, "metadata": {**job["metadata"], "namespace": SPACE}}
    reason, log = await run_job(client, JOBS, document, launcher="pi-launcher")
    assert reason == "MPIJobSucceeded", log + cluster.node.log
    assert find_hosts(log) == workers, log


async def test_a_launcher_that_reaches_no_worker_is_started_again(
    cluster: RunningCluster, client: Client, operator: None, danlu: Danlu, tmp_path: Path
) -> None:
    image = await push_pi(cluster, danlu, tmp_path, "debian13")
    # The first attempt reaches no worker.
    again = 'test -n "$DANLU_RESTART_COUNT" || export OMPI_MCA_plm_rsh_agent=false'
    agent = 'test -n "$DANLU_RESTART_COUNT" || export PRTE_MCA_plm_ssh_agent=false'
    command = ["sh", "-c", f"{again}; {agent}; mpirun -n 2 /home/mpiuser/pi"]
    document = describe_job(image, command)
    reason, log = await run_job(client, JOBS, document, launcher="pi-launcher")
    assert reason == "MPIJobSucceeded", log + cluster.node.log
    assert find_hosts(log) == ["pi-worker-0", "pi-worker-1"]


async def test_a_train_job_runs_its_ranks_on_launcher_and_nodes(
    cluster: RunningCluster, client: Client, operator: None, danlu: Danlu, tmp_path: Path
) -> None:
    image = await push_pi(cluster, danlu, tmp_path, "debian13")
    runtime = installed_runtime("deepspeed-distributed")
    assert runtime is not None
    await client.create_or_patch(runtime_resource("ClusterTrainingRuntime"), dict(runtime))
    trainer = {"image": image, "numNodes": 3, "command": ["mpirun", "-n", "3", "/home/mpiuser/pi"]}
    spec = {"runtimeRef": {"name": "deepspeed-distributed"}, "trainer": trainer}
    metadata = {"name": "pi", "namespace": SPACE}
    document = TRAIN_JOBS.to_manifest({"metadata": metadata, "spec": spec})
    reason, log = await run_job(client, TRAIN_JOBS, document, launcher="pi-launcher-0-0")
    assert reason == "AllJobsCompleted", log + cluster.node.log
    assert find_hosts(log) == ["pi-launcher-0-0", "pi-node-0-0", "pi-node-0-1"], log
