"""One image, by its digest, in three places: this machine, a real cluster, hosts of SageMaker."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from danlu.kube.client import Client
from danlu.kube.resources import PODS
from danlu.kube.watch import ListOptions
from danlu.training.rendering import JOB_NAME
from tests.conftest import Danlu, program_in
from tests.engines import docker_daemon
from tests.operator.cluster.conftest import RunningCluster
from tests.operator.cluster.images import push_image
from tests.operator.cluster.operator_process import install, run_operator
from tests.operator.cluster.test_training import DELIVERY
from tests.replica_runtime.sagemaker_hosts import (
    BUILD,
    PROGRAM,
    read_log,
    read_result,
    start_hosts,
    wait_for_exit,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.needs("docker", "dockerd", "root"),
]

COMMAND = '["python", "/srv/train.py", "--epochs", "3"]'
TORCH = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: pytorch}
spec:
  pytorchReplicaSpecs:
    Master: &replica
      template: {spec: {containers: [{name: pytorch, image: train, command: COMMAND}]}}
    Worker: *replica
""".replace("COMMAND", COMMAND)
MPI = """\
apiVersion: kubeflow.org/v1
kind: MPIJob
metadata: {name: mpi}
spec:
  mpiReplicaSpecs:
    Launcher:
      template: {spec: {containers: [{name: mpi, image: train, command: COMMAND}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: mpi, image: train}]}}
""".replace("COMMAND", COMMAND.replace("[", '["mpirun", "-np", "2", '))
SWITCHES = {"pytorch": {}, "mpi": {"sagemaker_mpi_enabled": "true"}}


@pytest.mark.parametrize(("framework", "manifest"), [("pytorch", TORCH), ("mpi", MPI)])
async def test_ranks_agree_on_this_machine_on_a_cluster_and_on_sagemaker(
    cluster: RunningCluster,
    client: Client,
    real_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    framework: str,
    manifest: str,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv("DANLU_HOME", str(real_home))
    danlu = program_in(real_home)
    project, delivery = tmp_path / "project", tmp_path / "delivery"
    for directory, build in ((project, BUILD), (delivery, DELIVERY)):
        directory.mkdir()
        (directory / "build.envd").write_text(build)
    (project / "train.py").write_text(PROGRAM)
    (project / "job.yaml").write_text(manifest)
    name = f"{cluster.registry}/team/one-{framework}"
    image = await anyio.to_thread.run_sync(push_image, project, name, danlu)
    config = json.loads((tmp_path / "project.json").read_text())["image"]["config"]

    found = await anyio.to_thread.run_sync(train_image, danlu, project, f"{name}:1")
    assert found == [(rank, 2, ["--epochs", "3"]) for rank in range(2)]

    await install(client)
    kubectl = await anyio.to_thread.run_sync(
        push_image, delivery, f"{cluster.registry}/team/kubectl", danlu
    )
    flag = f"--mpi-kubectl-delivery-image={kubectl}"
    async with run_operator(cluster.kubeconfig, tmp_path / "operator.log", flag):
        on_cluster = await anyio.to_thread.run_sync(
            train_image, danlu, project, image, "--on", "kubernetes"
        )
    assert on_cluster == found
    pods = (await client.list(PODS, ListOptions("default", labels=f"{JOB_NAME}={framework}"))).items
    used = {status["imageID"] for pod in pods for status in pod["status"]["containerStatuses"]}
    assert [name.rpartition("@")[2] for name in used] == [image.rpartition("@")[2]]

    log = await anyio.to_thread.run_sync(
        train_on_hosts, image, config, tmp_path, SWITCHES[framework]
    )
    assert read_result(log) == found


def train_image(danlu: Danlu, project: Path, image: str, *options: str) -> list[object]:
    """Return the result of the project's manifest with an image."""
    result = danlu("train", "-f", "job.yaml", "--image", image, *options, cwd=project)
    return [*read_result(result.stdout)]


def train_on_hosts(image: str, config: str, directory: Path, switches: dict[str, str]) -> str:
    """Return the log of the first of two hosts that SageMaker would start."""
    with docker_daemon() as docker:
        docker.pull(image)
        assert docker("image", "inspect", "--format", "{{.Id}}", image).strip() == config
        with start_hosts(docker, image, directory, 2, {"epochs": "3", **switches}) as hosts:
            logs = [(wait_for_exit(docker, host), read_log(docker, host)) for host in hosts]
    assert [code for code, _ in logs] == [0, 0], logs
    return logs[0][1]
