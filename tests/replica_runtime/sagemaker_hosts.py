"""SageMaker's hosts as containers of a real Docker daemon, and a program for all places."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Project
from tests.engines import Engine

BUILD = """\
def build():
    base(os="debian12")
    install.python(version="3.11")
    install.apt_packages(name=["openmpi-bin"])
    install.python_packages(name=["mpi4py"])
    io.copy("train.py", "/srv/")
    config.sagemaker(["python", "/srv/train.py"])
"""
#: Rank 0 gathers what all ranks see, through MPI or at MASTER_ADDR, and prints it.
PROGRAM = """\
import json
import os
import socket
import sys
import time

SEES = {"args": sys.argv[1:], "host": os.environ.get("SM_CURRENT_HOST", "")}


def gather_by_mpi():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return world.gather({"rank": world.rank, "size": world.size, **SEES})


def gather_by_sockets():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    seen = {"rank": rank, "size": size, **SEES}
    if rank:
        return send(address, seen)
    found = [seen]
    with socket.create_server(("", address[1])) as server:
        for _ in range(size - 1):
            connection, _ = server.accept()
            found.append(json.loads(connection.makefile().readline()))
            connection.close()
    return sorted(found, key=lambda seen: seen["rank"])


def send(address, seen):
    while True:
        try:
            with socket.create_connection(address) as connection:
                connection.sendall(json.dumps(seen).encode() + b"\\n")
                return
        except OSError:
            time.sleep(0.1)


found = (gather_by_mpi if "OMPI_COMM_WORLD_SIZE" in os.environ else gather_by_sockets)()
if found:
    print("RESULT", json.dumps(found), flush=True)
if "SM_MODEL_DIR" in os.environ:
    variables = {name: os.environ[name] for name in os.environ if name.startswith("SM_")}
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK"))
    with open(f"{os.environ['SM_MODEL_DIR']}/{rank}.json", "w") as file:
        json.dump(variables, file)
"""
_PREDICTOR = """
class Double:
    example = [1.0, 2.0]

    def load(self, directory):
        self.factor = float(open(f"{directory}/factor").read())

    def predict(self, values: list) -> list:
        return [value * self.factor for value in values]
"""
GROUP = "homogeneousCluster"


def read_result(log: str) -> list[tuple[int, int, list[str]]]:
    """Return rank, size and arguments of every rank, as rank 0 printed them."""
    line = next(line for line in log.splitlines() if "RESULT " in line)
    found = json.loads(line.partition("RESULT ")[2])
    return [(seen["rank"], seen["size"], seen["args"]) for seen in found]


def write_host(
    directory: Path,
    host: str,
    hosts: Sequence[str],
    hyperparameters: Mapping[str, str],
    **more: Any,
) -> None:
    """Write the files that SageMaker writes for one host."""
    config = directory / "input" / "config"
    config.mkdir(parents=True)
    for name in ("input/data/train", "model", "output", "checkpoints"):
        (directory / name).mkdir(parents=True)
    (directory / "input/data/train/data.csv").write_text("1,2\n")
    kind = "ml.m5.large"
    group = {"instance_group_name": GROUP, "instance_type": kind, "hosts": list(hosts)}
    resources = {
        "current_host": host,
        "current_instance_type": kind,
        "current_group_name": GROUP,
        "hosts": list(hosts),
        "instance_groups": [group],
        "network_interface_name": "eth0",
        **more,
    }
    channel = {
        "TrainingInputMode": "File",
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": "None",
    }
    documents = {
        "resourceconfig": resources,
        "inputdataconfig": {"train": channel},
        "hyperparameters": dict(hyperparameters),
    }
    for name, document in documents.items():
        (config / f"{name}.json").write_text(json.dumps(document))


@contextmanager
def start_hosts(
    engine: Engine,
    image: str,
    directory: Path,
    count: int,
    hyperparameters: Mapping[str, str],
    *options: str,
) -> Iterator[list[str]]:
    """Start the hosts of a job, which all have the same host name; yield their names."""
    hosts = [f"algo-{number}" for number in range(1, count + 1)]
    engine("network", "create", "--internal", "sagemaker")
    try:
        for host in hosts:
            write_host(directory / host, host, hosts, hyperparameters)
            start_host(engine, image, directory, host, "--network", "sagemaker", *options)
        yield hosts
    finally:
        engine("rm", "--force", *hosts)
        engine("network", "rm", "sagemaker")


def start_host(engine: Engine, image: str, directory: Path, host: str, *options: str) -> None:
    """Start one host as SageMaker does; its input can only be read."""
    volumes = [f"{directory}/{host}:/opt/ml", f"{directory}/{host}/input:/opt/ml/input:ro"]
    mounts = [word for volume in volumes for word in ("--volume", volume)]
    variables = ["--env", "TRAINING_JOB_NAME=job", "--env", "AWS_REGION=eu-west-1"]
    command = ["run", "--detach", "--name", host, "--hostname", "aws", *mounts, *variables]
    engine(*command, *options, image, "train")


def read_log(engine: Engine, host: str) -> str:
    """Return what a host has printed."""
    command = [*engine.command, "logs", host]
    return subprocess.run(
        command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ).stdout


def wait_for_exit(engine: Engine, host: str) -> int:
    """Return the exit code of a host once it has ended."""
    return int(engine("wait", host))


def pack_predictor(project: Project, archive: Path, *lines: str) -> None:
    """Pack a model that doubles numbers as ``packed:1``, and save the image.

    ``lines`` are further ones of the build file. The server needs NumPy, which the predictor does
    not.
    """
    packages = 'install.python_packages(["numpy"])'
    project.write('install.python(version="3.11")', packages, *lines)
    (project.directory / "predict.py").write_text(_PREDICTOR)
    (project.directory / "model").mkdir()
    (project.directory / "model" / "factor").write_text("2")
    options = ("--predictor", "predict.py:Double", "--keep", "numpy")
    project("pack", "model", "-t", "packed:1", *options)
    project("image", "save", "packed:1", "-o", str(archive))
