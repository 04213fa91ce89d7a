"""Every framework trains on hosts as SageMaker starts them, with one image, as on this machine."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.e2e.conftest import Project
from tests.engines import docker_daemon
from tests.replica_runtime.sagemaker_hosts import read_log, start_hosts, wait_for_exit

pytestmark = [
    pytest.mark.training,
    pytest.mark.needs("docker", "dockerd", "root"),
    pytest.mark.timeout(1200),
]

RESULT = re.compile(r"result: 2 ranks agree on [0-9a-f]+; loss ([\d.]+) -> ([\d.]+)")


@pytest.mark.parametrize("framework", ["pytorch", "jax", "xgboost", "tensorflow"])
def test_frameworks_train_on_two_hosts_as_on_this_machine(
    project: Project, tmp_path: Path, framework: str
) -> None:
    for file in (ROOT / "examples" / framework).iterdir():
        if file.suffix in (".py", ".envd"):
            shutil.copy(file, project.directory)
    with (project.directory / "build.envd").open("a") as build:
        build.write('    config.sagemaker(["python", "/workspace/train.py"])\n')
    archive = tmp_path / "image.tar"
    built = project.build("-t", "train:1", "-o", f"type=docker,dest={archive}")
    types = ("--master", "1", "--worker", "1") if framework == "xgboost" else ("--worker", "2")
    local = project("train", "train.py", "--framework", framework, *types, "--image", "train:1")
    with docker_daemon() as docker:
        docker.load(archive)
        digest = docker("image", "inspect", "--format", "{{.Id}}", "train:1").strip()
        assert digest == built["image"]["config"]
        with start_hosts(docker, digest, tmp_path, 2, {}) as hosts:
            codes = [wait_for_exit(docker, host) for host in hosts]
            logs = [read_log(docker, host) for host in hosts]
    assert codes == [0, 0], logs
    expected, found = RESULT.search(local.stdout), RESULT.search("".join(logs))
    assert expected, local.stdout
    assert found, logs
    assert found.groups() == expected.groups()
