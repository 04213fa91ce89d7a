"""Initializers in the containers of an environment: data of a hub, an S3 and this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Danlu
from tests.fakes.hub import FakeHub, serve_hub
from tests.fakes.s3 import CLIENT_PACKAGES, SERVER_PACKAGES, serve_s3
from tests.serving.servers import install_packages

pytestmark = [pytest.mark.real, pytest.mark.needs("slirp4netns", "tun")]

BUILD = f"""
def build():
    base(os="debian12")
    install.python(version="3.11")
    install.python_packages({list(CLIENT_PACKAGES)!r})
"""
JOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: loaded}
spec:
  runtimeRef: {name: plain-distributed}
  initializer:
    dataset:
      storageUri: DATASET
      env: [{name: HF_ENDPOINT, value: "HUB"}]
    model:
      storageUri: s3://team/net/
      env:
      - {name: ENDPOINT, value: "S3"}
      - {name: REGION, value: us-east-1}
      secretRef: {name: keys}
  trainer:
    numNodes: 2
    command: [python, nodes.py]
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {ACCESS_KEY_ID: id, SECRET_ACCESS_KEY: key}
"""
#: A program that is written for a cluster.
NODES = """
from pathlib import Path

for name in ("dataset", "model"):
    root = Path("/workspace") / name
    files = (path for path in root.rglob("*") if path.is_file())
    print(name, *sorted(path.name for path in files if ".cache" not in path.parts))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/build.envd").write_text(BUILD)
    (tmp_path / "project/nodes.py").write_text(NODES)
    return tmp_path / "project"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    files = {"train.parquet": b"p", "README.md": b"r"}
    with serve_hub(FakeHub({"datasets/team/data": files})) as hub:
        yield hub


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[str]:
    packages = install_packages(tmp_path / "s3", *SERVER_PACKAGES)
    with serve_s3(
        packages, {"team": {"net/model.safetensors": 9, "net/sub/config.json": 2}}
    ) as url:
        yield url


def write_job(project: Path, hub: FakeHub, s3: str, dataset: str) -> None:
    text = JOB.replace("DATASET", dataset).replace("HUB", hub.url).replace("S3", s3)
    (project / "job.yaml").write_text(text)


def test_an_unmodified_program_finds_the_data_in_its_container(
    danlu: Danlu, project: Path, hub: FakeHub, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(project, hub, s3, "hf://team/data")
    danlu("build", cwd=project)
    # The ports of local proxies are forwarded to containers.
    for name, value in (("http_proxy", hub.url), ("all_proxy", s3), ("no_proxy", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    output = danlu("train", "-f", "job.yaml", "--env", "build.envd", cwd=project).stdout
    for node in (0, 1):
        assert f"node-{node}                │ dataset README.md train.parquet" in output
        assert f"node-{node}                │ model config.json model.safetensors" in output
    # The files of the host, once more in the same environment, and an answer of the hub.
    (project / "local file").write_text("x")
    write_job(project, hub, s3, f"'{(project / 'local file').as_uri()}'")
    output = danlu("train", "-f", "job.yaml", "--env", "build.envd", cwd=project).stdout
    assert "node-0                │ dataset local file" in output
    hub.status = 503
    write_job(project, hub, s3, "hf://team/data")
    result = danlu("train", "-f", "job.yaml", "--env", "build.envd", cwd=project, check=False)
    assert result.returncode == 1
    assert f"cannot load hf://team/data from {hub.url}: " in result.stdout
    assert "503" in result.stdout
    assert "node-0:" not in result.stdout
