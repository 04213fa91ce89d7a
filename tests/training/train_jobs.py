"""TrainJobs for tests: read from text, written and read again, rendered with a cluster's names."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import pytest

from danlu.training.document import ManifestError, read_manifest_file
from danlu.training.registry import TRAIN_JOB
from danlu.training.rendering import render_pod
from danlu.training.train_job.reader import read_train_job
from danlu.training.train_job.writer import write_train_job
from danlu.training.types import Job, ReplicaId
from danlu.util.yaml_with_lines import dump_yaml

INDEX = "JOB_COMPLETION_INDEX"


@dataclass(frozen=True)
class ClusterNames:
    """Where the replicas of a TrainJob with this name are reached on a cluster."""

    job: str
    on_cluster = False

    def host(self, replica: ReplicaId, *, qualified: bool = False) -> str:
        return f"{self.job}-{replica.type}-0-{replica.index}.{self.job}"

    def port(self, replica: ReplicaId) -> int:
        return TRAIN_JOB.port

    def directory(self, replica: ReplicaId) -> str:
        return "/etc/danlu"


def read_text(text: str) -> Job:
    """Return the TrainJob of a text that may also have its runtime."""
    file = read_manifest_file(textwrap.dedent(text), "job.yaml")
    return read_train_job(file.job, file.runtimes)


def find_errors(text: str) -> dict[str, str]:
    """Return the messages about a text that is refused, by field."""
    with pytest.raises(ManifestError) as caught:
        read_text(text)
    return {finding.path: finding.message for finding in caught.value.findings}


def write_and_read(job: Job) -> Job:
    return read_text("---\n".join(map(dump_yaml, write_train_job(job))))


def find_container(job: Job, replica: ReplicaId, name: str = "node") -> dict[str, Any]:
    """Return a container, or init container, of a replica's pod."""
    pod = render_pod(job, TRAIN_JOB, replica, ClusterNames(job.name))["spec"]
    (found,) = [
        container
        for container in (*pod.get("initContainers", ()), *pod["containers"])
        if container["name"] == name
    ]
    return dict(found)


def read_variables(job: Job, replica: ReplicaId, name: str = "node") -> dict[str, Any]:
    """Return the variables of a container without the index that each one has."""
    env = find_container(job, replica, name)["env"]
    variables = {variable["name"]: variable["value"] for variable in env}
    assert variables.pop(INDEX) == str(replica.index)
    return variables
