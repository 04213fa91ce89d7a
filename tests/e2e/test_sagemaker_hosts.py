"""One image, by its digest, trains on this machine and on the hosts of a SageMaker job."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Project
from tests.engines import Engine, docker_daemon
from tests.replica_runtime.sagemaker_hosts import (
    BUILD,
    PROGRAM,
    pack_predictor,
    read_log,
    read_result,
    start_host,
    start_hosts,
    wait_for_exit,
    write_host,
)
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.needs("docker", "dockerd", "root")]

IMAGE = "train:1"


@pytest.fixture(scope="module")
def docker() -> Iterator[Engine]:
    with docker_daemon() as engine:
        yield engine


@pytest.fixture
def image(project: Project, docker: Engine, tmp_path: Path) -> str:
    """The digest of the image's config, in danlu's store and in Docker's."""
    (project.directory / "train.py").write_text(PROGRAM)
    (project.directory / "build.envd").write_text(BUILD)
    archive = tmp_path / "image.tar"
    built = project.build("-t", IMAGE, "-o", f"type=docker,dest={archive}")
    docker.load(archive)
    archive.unlink()
    digest = docker("image", "inspect", "--format", "{{.Id}}", IMAGE).strip()
    assert digest == built["image"]["config"]
    return digest


@pytest.mark.parametrize("framework", ["pytorch", "mpi"])
def test_ranks_are_those_of_a_job_on_this_machine(
    project: Project, docker: Engine, image: str, tmp_path: Path, framework: str
) -> None:
    launcher = ["--launcher", "1"] if framework == "mpi" else []
    local = project(
        *("train", "train.py", "--framework", framework, *launcher, "--worker", "2"),
        *("--image", IMAGE, "--", "--epochs", "3"),
    )
    expected = read_result(local.stdout)
    assert expected == [(rank, 2, ["--epochs", "3"]) for rank in range(2)]

    switch = {"sagemaker_mpi_enabled": "true"} if framework == "mpi" else {}
    hyperparameters = {"epochs": "3", **switch}
    with start_hosts(docker, image, tmp_path, 2, hyperparameters) as hosts:
        codes = [wait_for_exit(docker, host) for host in hosts]
        logs = [docker("logs", host) for host in hosts]
    assert codes == [0, 0], logs
    assert read_result(logs[0]) == expected
    for rank, host in enumerate(hosts):
        assert (tmp_path / host / "output" / "success").read_text() == ""
        variables = json.loads((tmp_path / host / "model" / f"{rank}.json").read_text())
        assert variables["SM_CURRENT_HOST"] == host
        assert variables["SM_CURRENT_HOST_RANK"] == str(rank)
        assert json.loads(variables["SM_HOSTS"]) == hosts
        assert variables["SM_CHANNEL_TRAIN"] == "/opt/ml/input/data/train"


ALONE = ("--network", "none", "--add-host", "algo-1:127.0.0.1")
# Longer than mpirun lets its ranks live.
WAITS = """
import signal, sys, time
def save(*_):
    time.sleep(2)
    open("/opt/ml/checkpoints/saved", "w").close()
    sys.exit(5)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    signal.pause()
"""
ORPHAN = """
import os, subprocess, time
orphan = subprocess.check_output(["sh", "-c", "sleep 0.1 >/dev/null & echo $!"], text=True).strip()
while os.path.exists(f"/proc/{orphan}"):
    time.sleep(0.05)
"""
FILLS = "open('/opt/ml/model/weights', 'wb').write(bytes(1 << 20))"


def run_python(code: str) -> tuple[str, ...]:
    """Return the options with which a job runs this code instead of the image's program."""
    return ("--env", f"DANLU_TRAIN_COMMAND={json.dumps(['python', '-c', code])}")


@pytest.mark.parametrize(
    ("options", "code", "messages", "failure"),
    [
        (run_python(ORPHAN), 0, [], ""),
        (
            (*run_python(FILLS), "--tmpfs", "/opt/ml/model:size=64k"),
            1,
            ["OSError: [Errno 28] No space left on device"],
            "OSError: [Errno 28] No space left on device",
        ),
        (
            ("--read-only", "--volume", "/etc:/opt/ml/output:ro"),
            1,
            [
                "error: cannot create /opt/ml/output/data: Read-only file system",
                "warning: cannot write /opt/ml/output/failure: Read-only file system",
            ],
            "",
        ),
        (
            ("--user", "1000"),
            1,
            [
                "error: cannot create /opt/ml/output/data: Permission denied",
                "hint: SageMaker expects images that run as root",
            ],
            "",
        ),
    ],
    ids=["orphans", "full disk", "read-only output", "another user"],
)
def test_faults_of_a_host_are_one_message(
    docker: Engine,
    image: str,
    tmp_path: Path,
    options: tuple[str, ...],
    code: int,
    messages: list[str],
    failure: str,
) -> None:
    write_host(tmp_path / "algo-1", "algo-1", ["algo-1"], {})
    start_host(docker, image, tmp_path, "algo-1", *ALONE, *options)
    try:
        assert wait_for_exit(docker, "algo-1") == code
        log = read_log(docker, "algo-1")
    finally:
        docker("rm", "--force", "algo-1")
    assert [message for message in messages if message not in log] == [], log
    assert log.count("Traceback") == bool(failure)
    found = tmp_path / "algo-1" / "output" / "failure"
    assert failure in (found.read_text() if found.exists() else "")


def test_sigterm_lets_the_program_save_and_its_exit_code_is_that_of_the_host(
    docker: Engine, image: str, tmp_path: Path
) -> None:
    write_host(tmp_path / "algo-1", "algo-1", ["algo-1"], {})
    start_host(docker, image, tmp_path, "algo-1", *ALONE, *run_python(WAITS))
    try:
        wait_for(lambda: "ready" in read_log(docker, "algo-1"))
        docker("stop", "-t", "60", "algo-1")
        assert wait_for_exit(docker, "algo-1") == 5
    finally:
        docker("rm", "--force", "algo-1")
    assert (tmp_path / "algo-1" / "checkpoints" / "saved").exists()
    assert not (tmp_path / "algo-1" / "output" / "failure").exists()


@pytest.mark.slow
def test_open_mpi_5_starts_ranks_on_hosts_of_the_same_name(
    project: Project, docker: Engine, tmp_path: Path
) -> None:
    build = BUILD.replace("debian12", "debian13").replace("3.11", "3.13")
    (project.directory / "train.py").write_text(PROGRAM)
    (project.directory / "build.envd").write_text(build)
    project("build", "-t", "five:1", "-o", f"type=docker,dest={tmp_path}/image.tar")
    docker.load(tmp_path / "image.tar")
    hyperparameters = {
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "2",
    }
    with start_hosts(docker, "five:1", tmp_path, 2, hyperparameters) as hosts:
        codes = [wait_for_exit(docker, host) for host in hosts]
        logs = [read_log(docker, host) for host in hosts]
    assert codes == [0, 0], logs
    assert read_result(logs[0]) == [(rank, 4, []) for rank in range(4)]
    assert len([*(tmp_path / hosts[1] / "model").iterdir()]) == 2


def test_other_mpi_is_refused_for_several_hosts(docker: Engine, image: str, tmp_path: Path) -> None:
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho HYDRA build details:\n")
    (tmp_path / "mpirun").chmod(0o755)
    volume = f"{tmp_path}/mpirun:/usr/local/bin/mpirun"
    switch = {"sagemaker_mpi_enabled": "true"}
    with start_hosts(docker, image, tmp_path, 2, switch, "--volume", volume) as hosts:
        assert [wait_for_exit(docker, host) for host in hosts] == [1, 1]
        log = read_log(docker, hosts[0])
    assert "error: mpirun is not Open MPI's, and would start all processes on one host" in log


@pytest.mark.slow
def test_sigterm_lets_ranks_of_mpi_save(docker: Engine, image: str, tmp_path: Path) -> None:
    hyperparameters = {"sagemaker_mpi_enabled": "true"}
    code = run_python(WAITS)
    with start_hosts(docker, image, tmp_path, 2, hyperparameters, *code) as hosts:
        wait_for(lambda: read_log(docker, hosts[0]).count("ready") == 2)
        docker("stop", "-t", "60", *hosts)
        codes = [wait_for_exit(docker, host) for host in hosts]
    assert codes == [5, 0]
    assert all((tmp_path / host / "checkpoints" / "saved").exists() for host in hosts)


def test_other_hosts_of_mpi_end_with_the_first_one(
    docker: Engine, image: str, tmp_path: Path
) -> None:
    hyperparameters = {"sagemaker_mpi_enabled": "true"}
    code = run_python("import time; print('ready', flush=True); time.sleep(600)")
    with start_hosts(docker, image, tmp_path, 2, hyperparameters, *code) as hosts:
        wait_for(lambda: read_log(docker, hosts[0]).count("ready") == 2)
        docker("kill", hosts[0])
        assert wait_for_exit(docker, hosts[1]) == 1
        log = read_log(docker, hosts[1])
    assert "error: lost the connection to host algo-1, which runs mpirun" in log
    failure = (tmp_path / hosts[1] / "output" / "failure").read_text()
    assert failure.startswith("rank 1 of 2 (algo-2): ")
    assert "lost the connection to host algo-1" in failure


def test_image_without_a_model_server_refuses_to_serve(docker: Engine, image: str) -> None:
    command = [*docker.command, "run", "--rm", "--network", "none", image, "serve"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert "error: the image has no model server" in result.stderr


ASK = """
import urllib.request
base = "http://127.0.0.1:8080"
headers = {"Content-Type": "application/json"}
assert urllib.request.urlopen(base + "/ping").status == 200
request = urllib.request.Request(base + "/invocations", b"[3.0]", headers)
print(urllib.request.urlopen(request).read().decode())
"""


@pytest.mark.slow
def test_packed_image_serves_and_refuses_to_train(
    project: Project, docker: Engine, tmp_path: Path
) -> None:
    pack_predictor(
        project, tmp_path / "packed.tar", 'config.sagemaker(["python", "/srv/train.py"])'
    )
    docker.load(tmp_path / "packed.tar")
    write_host(tmp_path / "algo-1", "algo-1", ["algo-1"], {})
    start_host(docker, "packed:1", tmp_path, "algo-1", *ALONE)
    try:
        code, log = wait_for_exit(docker, "algo-1"), read_log(docker, "algo-1")
    finally:
        docker("rm", "--force", "algo-1")
    message = "this image serves a model and has no training program"
    hint = "hint: train with the image that it was packed from"
    assert (code, log) == (1, f"error: {message}\n{hint}\n")
    assert (tmp_path / "algo-1" / "output" / "failure").read_text() == message

    docker("run", "--detach", "--name", "served", "--network", "none", "packed:1", "serve")
    try:
        wait_for(lambda: "ready" in read_log(docker, "served"))
        assert json.loads(docker("exec", "served", "python", "-c", ASK)) == [6.0]
    finally:
        docker("rm", "--force", "served")
