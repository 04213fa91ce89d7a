"""``danlu build --builder kubernetes``: steps run by a buildkitd in a pod of a real node."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from danlu.kube.client import Client, DeleteOptions
from danlu.kube.resources import PODS
from danlu.kube.watch import ListOptions
from tests.conftest import Danlu, program_in
from tests.kube.servers import TOKEN
from tests.operator.cluster.conftest import RunningCluster
from tests.operator.cluster.images import push_image

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.needs("root", "buildkitd", "buildctl", "kubectl"),
]

DAEMON = """\
def build():
    base(os="debian12")
    install.apt_packages(name=["runc"])
    io.copy("bin", "/usr/local/bin")
"""
COMMAND = 'cat /proc/1/cpuset > /dev/null; echo "made by a step" > /srv/made; mkdir /srv/new'
PROJECT = f"""\
def build():
    base(os="debian12")
    run(commands=[{COMMAND!r}])
"""


@pytest.fixture(scope="module")
def image(
    cluster: RunningCluster, real_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """An image with this machine's buildkitd, in the cluster's registry."""
    directory = tmp_path_factory.mktemp("daemon")
    (directory / "bin").mkdir()
    for name in ("buildkitd", "buildctl"):
        program = shutil.which(name)
        assert program is not None
        shutil.copy(program, directory / "bin")
    (directory / "build.envd").write_text(DAEMON)
    return push_image(directory, f"{cluster.registry}/buildkit", program_in(real_home))


@pytest.fixture
async def project(
    cluster: RunningCluster,
    client: Client,
    image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A project, for builds with pods of the cluster; pods of earlier tests are deleted."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv("DANLU_KUBERNETES_BUILDER_IMAGE", image)
    monkeypatch.setenv("DANLU_KUBERNETES_BUILDER_PRIVILEGED", "true")
    for pod in await list_pods(client):
        await client.delete(PODS, pod, namespace="default", options=DeleteOptions(grace=0))
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "build.envd").write_text(PROJECT)
    return directory


async def list_pods(client: Client) -> list[str]:
    labels = "app.kubernetes.io/component=buildkit"
    result = (await client.list(PODS, ListOptions("default", labels=labels))).items
    return [pod["metadata"]["name"] for pod in result if "deletionTimestamp" not in pod["metadata"]]


def describe(directory: Path, danlu: Danlu, *arguments: str) -> dict[str, object]:
    file = directory.parent / "metadata.json"
    danlu("build", *arguments, "--metadata-file", str(file), cwd=directory)
    document: dict[str, object] = json.loads(file.read_text())["image"]
    return document


async def test_pod_gives_the_image_of_the_embedded_builder_and_is_kept(
    project: Path, danlu: Danlu, client: Client
) -> None:
    remote = describe(project, danlu, "--builder", "kubernetes")
    (pod,) = await list_pods(client)
    embedded = describe(project, danlu, "--no-cache")
    assert remote["config"] == embedded["config"]
    (project / "build.envd").write_text(PROJECT.replace("mkdir /srv/new", "mkdir /srv/next"))
    danlu("build", "--builder", "kubernetes", cwd=project)
    assert await list_pods(client) == [pod]


async def test_pod_of_a_build_alone_is_deleted_with_it(
    project: Path, danlu: Danlu, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANLU_KUBERNETES_BUILDER_IDLE", "0")
    (project / "build.envd").write_text(PROJECT.replace("mkdir /srv/new", "mkdir /srv/alone"))
    result = danlu("build", "--builder", "kubernetes", cwd=project)
    assert "created pod default/danlu-buildkit-" in result.stderr
    assert await list_pods(client) == []


async def test_interrupted_build_deletes_its_pod(
    project: Path, real_home: Path, danlu: Danlu, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANLU_KUBERNETES_BUILDER_IDLE", "0")
    (project / "build.envd").write_text(PROJECT.replace("mkdir /srv/new", "echo began; sleep 1000"))
    danlu("lock", cwd=project)
    program = subprocess.Popen(
        [str(Path(sys.executable).with_name("danlu")), "build", "--builder", "kubernetes"],
        cwd=project,
        env={**os.environ, "DANLU_HOME": str(real_home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert program.stdout is not None
    try:
        for line in program.stdout:
            if "| began" in line:
                break
        program.send_signal(signal.SIGINT)
        rest = program.stdout.read()
        assert program.wait(timeout=60) == 130, rest
        assert await list_pods(client) == []
    finally:
        program.kill()
        program.wait()
        program.stdout.close()


async def test_pod_that_cannot_start_names_the_reason_and_is_deleted(
    project: Path,
    cluster: RunningCluster,
    danlu: Danlu,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DANLU_KUBERNETES_BUILDER_IMAGE", f"{cluster.registry}/missing:1")
    result = danlu("build", "--builder", "kubernetes", "--no-cache", cwd=project, check=False)
    assert result.returncode == 3
    assert "ImagePullBackOff" in result.stderr
    assert await list_pods(client) == []


async def test_missing_permissions_of_a_user_are_named(
    project: Path,
    cluster: RunningCluster,
    danlu: Danlu,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tmp_path / "reader"
    config.write_text(cluster.kubeconfig.read_text().replace(TOKEN, "reader"))
    monkeypatch.setenv("KUBECONFIG", str(config))
    result = danlu("build", "--builder", "kubernetes", "--no-cache", cwd=project, check=False)
    assert result.returncode == 3
    assert 'User "reader" cannot create resource "pods"' in result.stderr
    assert "can-i" in result.stderr
