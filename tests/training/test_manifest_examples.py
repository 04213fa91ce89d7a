"""The examples of the training operator 1.9 (MXJob: 1.7), shortened: all are accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.training.document import read_manifest_file
from danlu.training.manifest import read_job, write_job
from danlu.training.registry import find_framework
from danlu.training.rendering import render_pod
from danlu.training.topology import ServiceTopology
from danlu.training.types import CleanPodPolicy, Job, ReplicaId, ReplicaType, RestartPolicy
from danlu.util.yaml_with_lines import dump_yaml

FILES = {path.stem: path for path in sorted((Path(__file__).parent / "examples").glob("*.yaml"))}

# Kind and replicas of each example.
EXAMPLES = {
    "jax-cpu-demo": ("JAXJob", {"Worker": 2}),
    "jax-spmd-mnist-gloo": ("JAXJob", {"Worker": 2}),
    "mpi-tensorflow-mnist": ("MPIJob", {"Launcher": 1, "Worker": 2}),
    "mpi-tensorflow-mnist-elastic": ("MPIJob", {"Launcher": 1, "Worker": 2}),
    "mxnet-byteps": ("MXJob", {"Scheduler": 1, "Server": 2, "Worker": 2}),
    "mxnet-dist": ("MXJob", {"Scheduler": 1, "Server": 1, "Worker": 1}),
    "mxnet-dist-gpu": ("MXJob", {"Scheduler": 1, "Server": 1, "Worker": 1}),
    "mxnet-tune": ("MXJob", {"TunerTracker": 1, "TunerServer": 1, "Tuner": 1}),
    "paddle-simple-cpu": ("PaddleJob", {"Worker": 2}),
    "paddle-simple-gpu": ("PaddleJob", {"Worker": 2}),
    "pytorch-deepspeed": ("PyTorchJob", {"Master": 1, "Worker": 1}),
    "pytorch-elastic-echo": ("PyTorchJob", {"Worker": 2}),
    "pytorch-elastic-imagenet": ("PyTorchJob", {"Worker": 2}),
    "pytorch-mnist-gloo": ("PyTorchJob", {"Master": 1, "Worker": 1}),
    "pytorch-mnist-mpi": ("PyTorchJob", {"Master": 1, "Worker": 1}),
    "pytorch-mnist-nccl": ("PyTorchJob", {"Master": 1, "Worker": 1}),
    "pytorch-sendrecv": ("PyTorchJob", {"Master": 1, "Worker": 3}),
    "pytorch-simple": ("PyTorchJob", {"Master": 1, "Worker": 1}),
    "pytorch-torchrun-cpu": ("PyTorchJob", {"Master": 1, "Worker": 1}),
    "tensorflow-dist-mnist": ("TFJob", {"Chief": 1, "PS": 2, "Worker": 4}),
    "tensorflow-mnist-with-summaries": ("TFJob", {"Worker": 1}),
    "tensorflow-multi-worker": ("TFJob", {"Worker": 2}),
    "tensorflow-simple": ("TFJob", {"Worker": 2}),
    "xgboost-iris-predict": ("XGBoostJob", {"Master": 1, "Worker": 2}),
    "xgboost-iris-predict-local": ("XGBoostJob", {"Master": 1, "Worker": 2}),
    "xgboost-iris-train": ("XGBoostJob", {"Master": 1, "Worker": 2}),
    "xgboost-iris-train-local": ("XGBoostJob", {"Master": 1, "Worker": 2}),
    "xgboost-lightgbm": ("XGBoostJob", {"Master": 1, "Worker": 2}),
    "xgboost-rabit": ("XGBoostJob", {"Master": 1, "Worker": 2}),
}


def read(example: str) -> Job:
    job = read_manifest_file(FILES[example].read_text(), f"{example}.yaml").job
    return read_job(job, find_framework(job["kind"]))


def test_every_example_is_tested() -> None:
    assert set(FILES) == set(EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_is_parsed(example: str) -> None:
    kind, replicas = EXAMPLES[example]
    job = read(example)
    assert job.kind == kind
    assert {type: spec.replicas for type, spec in job.replicas.items()} == replicas


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_round_trips(example: str) -> None:
    job = read(example)
    again = read_manifest_file(dump_yaml(write_job(job)), "again.yaml").job
    assert read_job(again, find_framework(job.kind)) == job


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_replica_of_an_example_runs_the_command_of_the_user(example: str) -> None:
    job = read(example)
    framework = find_framework(job.kind)
    for type, spec in job.replicas.items():
        user = spec.template["spec"]["containers"][0]
        for index in range(spec.replicas):
            pod = render_pod(
                job, framework, ReplicaId(type, index), ServiceTopology(job, framework)
            )
            container = pod["spec"]["containers"][0]
            assert container["image"] == user["image"]
            assert container.get("args", user.get("args")) == user.get(
                "args", container.get("args")
            )
            assert pod["metadata"]["labels"]["training.kubeflow.org/job-name"] == job.name


def test_other_fields_of_examples_are_parsed() -> None:
    imagenet = read("pytorch-elastic-imagenet").elastic_policy
    assert imagenet is not None
    assert (imagenet.min_replicas, imagenet.max_replicas, imagenet.rdzv_port) == (1, 3, 2379)
    assert imagenet.metrics[0]["resource"]["target"]["averageUtilization"] == 80
    assert read("pytorch-torchrun-cpu").options == {"nprocPerNode": "2"}
    assert (
        read("mpi-tensorflow-mnist-elastic").run_policy.clean_pod_policy is CleanPodPolicy.RUNNING
    )
    assert read("mxnet-tune").options == {"jobMode": "MXTune"}
    workers = read("xgboost-lightgbm").replicas[ReplicaType("Worker")]
    assert workers.restart_policy is RestartPolicy.EXIT_CODE
    assert read("tensorflow-simple").namespace == "kubeflow"


def test_unused_objects_are_listed() -> None:
    text = FILES["tensorflow-mnist-with-summaries"].read_text()
    document = read_manifest_file(text, "job.yaml")
    assert document.others == (
        "PersistentVolume/tfevent-volume",
        "PersistentVolumeClaim/tfevent-volume",
    )
