"""Environments in pods of a real cluster: what other engines do not have."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.kubernetes.settings import MANAGED_LABELS, read_settings
from danlu.kube.client import Client, DeleteOptions
from danlu.kube.resources import (
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    STORAGE_CLASSES,
    Resource,
)
from danlu.kube.types import Manifest
from danlu.kube.watch import ListOptions
from tests.conftest import Danlu
from tests.engine.kubernetes.clusters import cluster_variables
from tests.fakes.vscode_archives import COMMIT, make_cli, make_server
from tests.operator.cluster.conftest import RunningCluster

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.real,
    pytest.mark.needs("busybox", "root"),
    pytest.mark.timeout(180),
]

VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", Manifest, namespaced=False)
_COMMAND = str(Path(sys.executable).with_name("danlu"))


@pytest.fixture(autouse=True)
def variables(cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cluster_variables(cluster).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
async def client(cluster: RunningCluster) -> AsyncIterator[Client]:
    async with Client(cluster.access, manager="tests") as client:
        yield client


@pytest.fixture
async def storage(client: Client, tmp_path: Path) -> AsyncIterator[None]:
    """A default storage class with volumes for two claims."""
    metadata = {"name": "local"}
    default = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    fields = {"metadata": {**metadata, **default}, "provisioner": "kubernetes.io/no-provisioner"}
    await client.create(STORAGE_CLASSES, STORAGE_CLASSES.to_manifest(fields))
    for name in ("one", "two"):
        spec = {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "hostPath": {"path": str(tmp_path / name), "type": "DirectoryOrCreate"},
        }
        volume = VOLUMES.to_manifest({"metadata": {"name": name}, "spec": spec})
        await client.create(VOLUMES, volume)
    yield
    await client.delete_all(PERSISTENT_VOLUME_CLAIMS, ListOptions("default"))
    await client.delete_all(VOLUMES)
    await client.delete(STORAGE_CLASSES, "local")


def start(danlu: Danlu, project: Path, *options: str) -> EnvironmentDirectory:
    danlu("up", "--image", "box:1", "-d", *options, cwd=project)
    return EnvironmentDirectory(project.parent / "home/environments/digits")


def run_inside(danlu: Danlu, project: Path, script: str, *, check: bool = True) -> str:
    return danlu("exec", "--", "sh", "-c", script, cwd=project, check=check).stdout


async def list_pods(client: Client) -> list[str]:
    labels = ",".join(f"{name}={value}" for name, value in MANAGED_LABELS.items())
    result = await client.list(PODS, ListOptions("default", labels=labels))
    return [pod["metadata"]["name"] for pod in result.items]


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait; the test's time limit ends it."""
    while not holds():
        time.sleep(0.05)


async def test_a_pod_outlives_its_supervisor_and_is_taken_over(
    danlu: Danlu, project: Path, client: Client
) -> None:
    environment = start(danlu, project)
    run_inside(danlu, project, "echo kept >/kept; sleep 1000 >/dev/null 2>&1 &")
    os.kill(int(environment.lock.read_text()), signal.SIGKILL)
    wait_for(lambda: not environment.is_running())
    (row,) = json.loads(danlu("ps", "--format", "json", cwd=project).stdout)
    assert (row["phase"], "killed" in row["reason"]) == ("Stopped", True)
    before = await list_pods(client)
    danlu("start", "digits", cwd=project)
    assert await list_pods(client) == before
    script = "cat /kept; ps | grep -c '[s]leep 1000'"
    assert run_inside(danlu, project, script, check=False) == "kept\n0\n"
    # What was made without a supervisor that copies it is saved.
    command = "until [ -e go ]; do :; done; echo late >late"
    run_inside(danlu, project, f"({command}) >/dev/null 2>&1 </dev/null & touch go")
    os.kill(int(environment.lock.read_text()), signal.SIGKILL)
    danlu("down", "digits", cwd=project)
    assert await list_pods(client) == []
    assert (project / "late").exists()


async def test_an_unreachable_cluster_is_an_error_and_leaves_nothing(
    danlu: Danlu,
    project: Path,
    tmp_path: Path,
    cluster: RunningCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    lost = tmp_path / "kubeconfig"
    text = cluster.kubeconfig.read_text()
    lost.write_text(text.replace(cluster.access.server, f"https://127.0.0.1:{port}"))
    with monkeypatch.context() as unreachable:
        unreachable.setenv("KUBECONFIG", str(lost))
        up = danlu("up", "--image", "box:1", "-d", cwd=project, check=False)
    assert up.returncode == 3
    assert "cannot reach API server" in up.stderr
    assert danlu("ps", "-q", cwd=project).stdout == ""


async def test_externally_deleted_pod_is_named(danlu: Danlu, project: Path, client: Client) -> None:
    environment = start(danlu, project)
    name = read_settings(environment).name
    await client.delete(PODS, name, namespace="default", options=DeleteOptions(grace=0))
    wait_for(lambda: not environment.is_running())
    (row,) = json.loads(danlu("ps", "--format", "json", cwd=project).stdout)
    assert row["phase"] == "Stopped"
    assert f"pod {name} was deleted, not by danlu" in row["reason"]
    danlu("start", "digits", cwd=project)
    assert run_inside(danlu, project, "echo runs") == "runs\n"


async def test_an_interrupted_up_reports_the_waiting_reason_and_cleans_up(
    danlu: Danlu, project: Path, box_home: Path, client: Client
) -> None:
    words = [_COMMAND, "up", "--image", "box:1", "-d", "--gpus", "1", "--progress", "plain"]
    environ = {**os.environ, "DANLU_HOME": str(box_home)}
    with subprocess.Popen(words, cwd=project, env=environ, stderr=subprocess.PIPE, text=True) as up:
        assert up.stderr is not None
        output = ""
        while "Insufficient nvidia.com/gpu" not in output:
            line = up.stderr.readline()
            assert line, output
            output += line
        assert "Unschedulable" in output
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 130
    assert danlu("ps", "-q", cwd=project).stdout == ""

    while await list_pods(client):
        time.sleep(0.05)


def test_the_project_is_copied_both_ways(danlu: Danlu, project: Path) -> None:
    (project / "script.sh").write_text("echo one\n")
    start(danlu, project)
    assert run_inside(danlu, project, "sh script.sh; echo made >made") == "one\n"
    assert (project / "made").read_text() == "made\n"
    (project / "script.sh").write_text("echo two\n")
    assert run_inside(danlu, project, "sh script.sh") == "two\n"
    (project / "made").write_text("ours\n")
    # What danlu does not wait for comes with the next program, or when the environment stops.
    run_inside(danlu, project, "(until [ -e go ]; do :; done; echo late >late) >/dev/null 2>&1 &")
    run_inside(danlu, project, "touch go; until [ -e late ]; do :; done; echo theirs >made")
    danlu("stop", "digits", cwd=project)
    assert (project / "late").read_text() == "late\n"
    assert sorted(path.name for path in project.iterdir()) == ["go", "late", "made", "script.sh"]
    assert (project / "made").read_text() == "theirs\n"


def test_servers_of_vs_code_are_copied_to_the_pod(
    danlu: Danlu, project: Path, tmp_path: Path
) -> None:
    archives = make_server(tmp_path / "server.tar.gz"), make_cli(tmp_path / "cli.tar.gz")
    danlu("vscode", "add", *map(str, archives), cwd=project)
    start(danlu, project)
    place = f"~/.vscode-server/cli/servers/Stable-{COMMIT}"
    script = f"""{place}/server/bin/code-server --version
        ~/.vscode-server/bin/{COMMIT}/bin/code-server --version
        test -x ~/.vscode-server/code-{COMMIT} && echo log >{place}/log.txt
        ls -A ~/.vscode-server/bin {place}"""
    output = run_inside(danlu, project, script)
    names = [f"/.vscode-server/bin:\n{COMMIT}\n", f"Stable-{COMMIT}:\nlog.txt\nserver\n"]
    assert output.startswith("--version 1.105.1\n" * 2)
    assert all(name in output for name in names), output


def test_unsupported_settings_of_a_pod_are_rejected(danlu: Danlu, project: Path) -> None:
    for options, message in (
        (("-v", f"{project}:/data"), "nodes do not have this machine's files"),
        (("-v", "data:/data"), "the cluster has no default storage class"),
        (("--gpus", "all"), "the cluster chooses the GPUs"),
    ):
        up = danlu("up", "--image", "box:1", "-d", *options, cwd=project, check=False)
        assert (up.returncode in (2, 3), message in up.stderr) == (True, True), up.stderr
        assert danlu("ps", "-q", cwd=project).stdout == ""
    start(danlu, project)
    commit = danlu("commit", "digits", cwd=project, check=False)
    assert (commit.returncode, "Kubernetes gives no access" in commit.stderr) == (2, True)
    other = danlu("exec", "--user", "worker", "true", cwd=project, check=False)
    assert "cannot run as user worker" in other.stderr


@pytest.mark.usefixtures("storage")
async def test_volumes_keep_files(danlu: Danlu, project: Path, client: Client) -> None:
    (project / ".danluignore").write_text("checkpoints\n")
    start(danlu, project, "-v", "data:/data")
    run_inside(danlu, project, "mkdir checkpoints; echo 1 >checkpoints/1; echo 2 >/data/2")
    danlu("stop", "digits", cwd=project)
    danlu("start", "digits", cwd=project)
    assert run_inside(danlu, project, "cat checkpoints/1 /data/2") == "1\n2\n"
    # It has only been in the pod.
    assert not (project / "checkpoints").exists()
    danlu("down", "digits", cwd=project)
    claims = await client.list(PERSISTENT_VOLUME_CLAIMS, ListOptions("default"))
    remaining = [
        item["metadata"] for item in claims.items if item["metadata"].get("labels") is None
    ]
    assert [item["name"] for item in remaining] == ["data"]


@pytest.mark.needs("ssh")
def test_ssh_reaches_programs_and_ports_of_the_pod(
    danlu: Danlu, project: Path, tmp_path: Path
) -> None:
    start(danlu, project, "--user", "worker")
    file = tmp_path / "ssh.conf"
    file.write_text(danlu("ssh-config", "digits", cwd=project).stdout)
    ssh = ["ssh", "-F", str(file)]
    shell = subprocess.run([*ssh, "digits.danlu", "id -u; exit 7"], capture_output=True, text=True)
    assert (shell.returncode, shell.stdout) == (7, "1000\n")
    answer = "printf 'HTTP/1.0 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nhello'"
    run_inside(danlu, project, f'nc -ll -p 8080 -e sh -c "{answer}" >/dev/null 2>&1 &')
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    forward = subprocess.Popen([*ssh, "-N", "-L", f"{port}:localhost:8080", "digits.danlu"])
    try:
        wait_for(lambda: b"hello" in fetch(port))
    finally:
        forward.terminate()
        forward.wait()
    listening = [*ssh, "-o", "ExitOnForwardFailure=yes", "-R", "0:localhost:22", "digits.danlu"]
    assert subprocess.run([*listening, "true"], capture_output=True).returncode == 255


def fetch(port: int) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return connection.makefile("rb").read()
    except OSError:
        return b""
