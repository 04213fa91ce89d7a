"""The local mode of SageMaker's own SDKs, in both versions, trains and serves danlu's images.

It uses ``docker-compose`` and a real Docker daemon. Neither version asks AWS for anything here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.e2e.conftest import Project
from tests.engines import docker_daemon
from tests.ports import free_port
from tests.replica_runtime.sagemaker_hosts import BUILD, PROGRAM, pack_predictor, read_result
from tests.serving.servers import install_packages

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.needs("docker", "docker-compose", "dockerd", "root"),
    pytest.mark.timeout(900),
]

SDK_2, SDK_3 = "sagemaker[local]==2.257.7", "sagemaker-train==1.27.0"
QUIET = """\
SchemaVersion: "1.0"
SageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}
"""
TRAIN_2 = """
import json, sys
import boto3
from sagemaker.estimator import Estimator
from sagemaker.local import LocalSession

image, place, hyperparameters = sys.argv[1:]
session = LocalSession(boto3.Session(region_name="eu-west-1"))
session.config = {"local": {"local_code": True, "container_root": f"{place}/root"}}
estimator = Estimator(
    image_uri=image, role="arn:aws:iam::123456789012:role/Train", instance_count=2,
    instance_type="local", output_path=f"file://{place}", sagemaker_session=session,
    hyperparameters=json.loads(hyperparameters),
)
estimator.fit({"train": f"file://{place}/data"})
"""
TRAIN_3 = """
import json, sys
import boto3
from sagemaker.core.helper.session_helper import Session
from sagemaker.core.training.configs import Compute, InputData
from sagemaker.train.model_trainer import Mode, ModelTrainer

image, place, hyperparameters = sys.argv[1:]
trainer = ModelTrainer(
    training_image=image, training_mode=Mode.LOCAL_CONTAINER, base_job_name="job",
    role="arn:aws:iam::123456789012:role/Train", local_container_root=f"{place}/root",
    sagemaker_session=Session(boto3.Session(region_name="eu-west-1")),
    compute=Compute(instance_type="local_cpu", instance_count=2),
    hyperparameters=json.loads(hyperparameters),
    input_data_config=[InputData(channel_name="train", data_source=f"{place}/data")],
)
trainer.train(wait=True)
"""
SERVE_2 = """
import json, sys
import boto3
from sagemaker.deserializers import JSONDeserializer
from sagemaker.local import LocalSession
from sagemaker.model import Model
from sagemaker.predictor import Predictor
from sagemaker.serializers import JSONSerializer

image, place, port = sys.argv[1:]
session = LocalSession(boto3.Session(region_name="eu-west-1"))
root = f"{place}/root"
session.config = {
    "local": {"local_code": True, "container_root": root, "serving_port": int(port)}
}
model = Model(
    image_uri=image, model_data=f"file://{place}/model.tar.gz", sagemaker_session=session,
    role="arn:aws:iam::123456789012:role/Train", predictor_cls=Predictor,
)
predictor = model.deploy(
    1, "local", serializer=JSONSerializer(), deserializer=JSONDeserializer()
)
print("ANSWER", json.dumps(predictor.predict([3.0])))
predictor.delete_endpoint()
"""
SERVE_3 = """
import json, sys
import boto3
from sagemaker.core.local import LocalSession

image, place, port = sys.argv[1:]
session = LocalSession(boto3.Session(region_name="eu-west-1"))
session.config = {
    "local": {
        "local_code": True, "container_root": f"{place}/root", "serving_port": int(port)
    }
}
client, model = session.sagemaker_client, f"file://{place}/model.tar.gz"
container = {"Image": image, "ModelDataUrl": model, "Environment": {}}
client.create_model("double", container)
variant = {
    "VariantName": "all", "ModelName": "double", "InstanceType": "local",
    "InitialInstanceCount": 1,
}
client.create_endpoint_config("double", [variant])
client.create_endpoint("double", "double")
answer = session.sagemaker_runtime_client.invoke_endpoint(
    "[3.0]", "double", ContentType="application/json", Accept="application/json"
)
print("ANSWER", answer["Body"].read().decode())
client.delete_endpoint("double")
"""


def run_sdk(sdk: Path, program: str, place: Path, address: str, *arguments: str) -> str:
    """Run a program with an SDK and return what it and its containers printed."""
    for name in ("root", "data", "home"):
        (place / name).mkdir(exist_ok=True)
    (place / "data" / "train.csv").write_text("1,2\\n")
    (place / "config.yaml").write_text(QUIET)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(place / "home"),
        "DOCKER_HOST": address,
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "SAGEMAKER_USER_CONFIG_OVERRIDE": str(place / "config.yaml"),
    }
    # PYTHONPATH would also be that of docker-compose.
    program = f"import sys; sys.path.insert(0, {str(sdk)!r})\n{program}"
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5000:]
    return result.stdout


@pytest.mark.parametrize(
    ("version", "program", "artifact"),
    [
        (SDK_2, TRAIN_2, "model.tar.gz"),
        (SDK_3, TRAIN_3, "root/compressed_artifacts/model.tar.gz"),
    ],
    ids=["version 2", "version 3"],
)
def test_local_mode_trains_on_two_hosts(
    project: Project, tmp_path: Path, version: str, program: str, artifact: str
) -> None:
    (project.directory / "train.py").write_text(PROGRAM)
    (project.directory / "build.envd").write_text(BUILD)
    archive = tmp_path / "image.tar"
    project("build", "-t", "train:1", "-o", f"type=docker,dest={archive}")
    sdk = install_packages(tmp_path / "sdk", version)
    with docker_daemon() as docker:
        docker.load(archive)
        for switches in ({}, {"sagemaker_mpi_enabled": True}):
            place = tmp_path / f"job-{len(switches)}"
            place.mkdir()
            words = ("train:1", str(place), json.dumps({"epochs": 3, **switches}))
            output = run_sdk(sdk, program, place, docker.command[-1], *words)
            assert read_result(output) == [(rank, 2, ["--epochs", "3"]) for rank in range(2)]
            with tarfile.open(place / artifact) as model:
                assert {"0.json", "1.json"} <= {Path(name).name for name in model.getnames()}


@pytest.mark.parametrize(
    ("version", "program"),
    [(SDK_2, SERVE_2), (SDK_3, SERVE_3)],
    ids=["version 2", "version 3"],
)
def test_local_mode_serves_a_packed_model(
    project: Project, tmp_path: Path, version: str, program: str
) -> None:
    pack_predictor(project, tmp_path / "packed.tar")
    sdk = install_packages(tmp_path / "sdk", version)
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(project.directory / "model" / "factor", "factor")
    with docker_daemon() as docker:
        docker.load(tmp_path / "packed.tar")
        words = ("packed:1", str(tmp_path), str(free_port()))
        output = run_sdk(sdk, program, tmp_path, docker.command[-1], *words)
    answer = next(line for line in output.splitlines() if line.startswith("ANSWER "))
    assert json.loads(answer.partition(" ")[2]) == [6.0]
