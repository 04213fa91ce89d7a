"""Settings and credentials of this machine reach only images that were built here."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.store import Store
from danlu.util.danlu_program import CONTEXT_VARIABLE
from tests.conftest import Danlu
from tests.engine.kubernetes.clusters import cluster_variables
from tests.engines import engine_variables
from tests.jobs.containers.engine_rig import image, paths_of
from tests.operator.cluster.conftest import RunningCluster

pytestmark = [pytest.mark.real, pytest.mark.needs("busybox"), pytest.mark.timeout(120)]

#: In every password and token, and in the directory of wheels.
SECRET = "hunter2"
INDEX_SECRET = f"index-{SECRET}"

#: Prints every variable, file and mount that a program could read.
LOOK = """env; cat /proc/self/mountinfo; find /run /etc /root /home -type f | while read -r file; do
echo "$file"; head -c 65536 "$file"; done 2>/dev/null;
ls -a /tmp /run/danlu /run/danlu/files 2>/dev/null; true"""

JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: look}}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
          - name: pytorch
            image: {image}
            command: [sh, -c, "{script}"]
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with credentials of every kind, in variables and files of the user."""
    home = tmp_path / "user"
    links = tmp_path / f"links-{SECRET}"
    links.mkdir()
    files = {
        ".netrc": f"machine example.com login me password {SECRET}\n",
        ".git-credentials": f"https://me:{SECRET}@example.com\n",
        ".docker/config.json": f'{{"auths": {{"example.com": {{"auth": "{SECRET}"}}}}}}',
        ".config/uv/uv.toml": f'extra-index-url = ["https://me:{INDEX_SECRET}@uv.example/simple"]',
        ".cache/huggingface/token": f"hf_{SECRET}",
        ".aws/credentials": f"aws_secret_access_key = {SECRET}\n",
        ".kube/config": f"token: {SECRET}\n",
        ".condarc": f"channels: ['https://example.com/t/{SECRET}/main']\n",
    }
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    agent = socket.socket(socket.AF_UNIX)
    # A socket's path has at most 107 bytes.
    with monkeypatch.context() as context:
        context.chdir(home)
        agent.bind(f"agent-{SECRET}")
    variables = {
        "HOME": str(home),
        "KUBECONFIG": "",
        "XDG_CONFIG_HOME": str(home / ".config"),
        "SSH_AUTH_SOCK": str(home / f"agent-{SECRET}"),
        "PIP_INDEX_URL": f"https://me:{INDEX_SECRET}@pip.example/simple",
        "PIP_EXTRA_INDEX_URL": f"https://me:{INDEX_SECRET}@extra.example/simple",
        "PIP_FIND_LINKS": str(links),
        "UV_INDEX": f"https://me:{INDEX_SECRET}@uv2.example/simple",
        "UV_INDEX_UV2_PASSWORD": SECRET,
        "http_proxy": f"http://me:{SECRET}@proxy.example:3128",
        "https_proxy": f"me:{SECRET}@proxy.example:3128",
        "no_proxy": "localhost,127.0.0.1",
        **dict.fromkeys(
            ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN"), SECRET
        ),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    yield
    agent.close()


def create_images(home: Path) -> None:
    """Create ``own:1``, which a build file gave, and ``pulled:1``, which says that one did."""
    claims = {"file": "build.envd", "function": "build"}
    pulled = image(home, metadata={"pulled": "example.com/pulled:1"}, Labels=claims)
    own = image(home, metadata=claims)
    with Store.open(paths_of(home).store) as store:
        store.tag("pulled:1", pulled)
        store.tag("own:1", own)


def look_in_job(danlu: Danlu, project: Path, name: str) -> str:
    script = LOOK.replace("\n", " ").replace("\\", "\\\\").replace('"', '\\"')
    (project / "job.yaml").write_text(JOB.format(image=name, script=script))
    return danlu("train", "-f", "job.yaml", cwd=project).stdout


def look_in_environment(danlu: Danlu, project: Path, name: str) -> str:
    danlu("up", "--image", name, "-d", "-n", "look", cwd=project)
    try:
        return danlu("exec", "-n", "look", "--", "sh", "-c", LOOK, cwd=project).stdout
    finally:
        danlu("down", "look", cwd=project)


def look_in_run(danlu: Danlu, project: Path, name: str) -> str:
    return danlu("run", "--image", name, "--", "sh", "-c", LOOK, cwd=project).stdout


WAYS = {"run": look_in_run, "up": look_in_environment, "train": look_in_job}


@pytest.mark.parametrize("way", WAYS)
def test_an_image_that_was_not_built_here_gets_no_credentials(
    danlu: Danlu, project: Path, machine: None, tmp_path: Path, way: str
) -> None:
    create_images(tmp_path / "home")
    own = WAYS[way](danlu, project, "own:1")
    assert INDEX_SECRET in own
    assert "proxy.example" in own
    # Only what concerns the network, whoever built the image.
    for other in ("hf_", "WANDB", "agent"):
        assert other not in own
    pulled = WAYS[way](danlu, project, "pulled:1")
    assert SECRET not in pulled
    assert "https_proxy=proxy.example:3128" in pulled
    assert "http_proxy=http://proxy.example:3128" in pulled


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("docker", marks=pytest.mark.needs("docker", "dockerd", "root")),
        pytest.param("podman", marks=[pytest.mark.needs("podman"), pytest.mark.slow]),
    ],
)
def test_other_engines_get_no_credentials_for_an_image_that_was_not_built_here(
    danlu: Danlu,
    project: Path,
    machine: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
) -> None:
    create_images(tmp_path / "home")
    with engine_variables(engine) as variables:
        for name, value in {CONTEXT_VARIABLE: engine, **variables}.items():
            monkeypatch.setenv(name, value)
        assert INDEX_SECRET in look_in_environment(danlu, project, "own:1")
        assert SECRET not in look_in_environment(danlu, project, "pulled:1")
        assert SECRET not in look_in_run(danlu, project, "pulled:1")


def test_pods_get_no_credentials(
    danlu: Danlu,
    project: Path,
    machine: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cluster: RunningCluster,
) -> None:
    create_images(tmp_path / "home")
    for name, value in cluster_variables(cluster).items():
        monkeypatch.setenv(name, value)
    assert SECRET not in look_in_environment(danlu, project, "own:1")


def test_changes_of_an_image_that_was_built_here_stay_trusted(
    danlu: Danlu, project: Path, machine: None, tmp_path: Path
) -> None:
    create_images(tmp_path / "home")
    for name, is_own in (("own", True), ("pulled", False)):
        danlu("up", "--image", f"{name}:1", "-d", "-n", name, cwd=project)
        danlu("exec", "-n", name, "--", "touch", "/made", cwd=project)
        danlu("commit", name, "--tag", f"{name}:2", cwd=project, check=False)
        danlu("down", name, cwd=project)
        assert (INDEX_SECRET in look_in_run(danlu, project, f"{name}:2")) == is_own
