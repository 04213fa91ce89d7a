"""The tables of Kubeflow Trainer's plug-in ``mpi``: how many hosts, slots and variables there are.

The cases are those of ``pkg/runtime/framework/plugins/mpi/mpi_test.go`` (2.3) without those of ssh
keys, which danlu does not need. In its runtimes the trainer configures the nodes, not the launcher.
The image on launcher and nodes is that of 2.4.
"""

from __future__ import annotations

import pytest

from danlu.training.document import ManifestError, read_manifest_file
from danlu.training.frameworks.train_job import LAUNCHER, NODE
from danlu.training.registry import find_job_framework
from danlu.training.train_job.reader import read_train_job
from danlu.training.train_job.writer import write_train_job
from danlu.training.types import Job, ReplicaId
from danlu.util.yaml_with_lines import dump_yaml
from tests.training.frameworks.topology import FakeTopology

TEXT = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: job}
spec: {runtimeRef: {name: team}, trainer: TRAINER}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: team}
spec:
  mlPolicy: {numNodes: 1, mpi: POLICY}
  template:
    spec:
      successPolicy: {operator: All, targetReplicatedJobs: [launcher]}
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec: {template: {spec: {containers: [{name: node, image: "node:1"}]}}}
      - name: launcher
        dependsOn: [{name: node, status: Ready}]
        template: {spec: {template: {spec: {containers: [{name: NAME, image: "launcher:1"}]}}}}
"""
AS_NODE = "{runLauncherAsNode: true}"


def read(trainer: str, policy: str = "{}", *, container: str = "node") -> Job:
    text = TEXT.replace("TRAINER", trainer).replace("POLICY", policy).replace("NAME", container)
    file = read_manifest_file(text, "job.yaml")
    return read_train_job(file.job, file.runtimes)


def hosts_of(job: Job) -> str:
    framework = find_job_framework(job)
    return framework.files(job, FakeTopology(job, framework), ())["hostfile"].text


def slots_of(job: Job) -> tuple[object, object]:
    framework = find_job_framework(job)
    launcher = ReplicaId(LAUNCHER, 0)
    variables = dict(framework.build_env(job, launcher, FakeTopology(job, framework)))
    return (
        variables["OMPI_MCA_orte_set_default_slots"],
        variables["PRTE_MCA_prte_set_default_slots"],
    )


GPUS = "resourcesPerNode: {limits: {custom.com/gpu: 5}}"


@pytest.mark.parametrize(
    ("policy", "trainer", "nodes", "slots"),
    [
        pytest.param("{}", "{numNodes: 2}", 2, 1, id="trainJob numNodes is respected"),
        pytest.param("{}", "{numProcPerNode: 2}", 1, 2, id="trainJob numProcPerNode is respected"),
        pytest.param("{numProcPerNode: 1}", f"{{{GPUS}}}", 1, 5, id="number of GPUs in TrainJob"),
        # The further branches of EnforceMLPolicy.
        pytest.param("{numProcPerNode: 3}", "{}", 1, 3, id="number of the runtime"),
        pytest.param("{numProcPerNode: 3}", f"{{{GPUS}}}", 1, 3, id="runtime before GPUs"),
        pytest.param("{}", f"{{numProcPerNode: 1, {GPUS}}}", 1, 1, id="TrainJob before GPUs"),
    ],
)
def test_host_file_has_the_nodes_with_their_slots(
    policy: str, trainer: str, nodes: int, slots: int
) -> None:
    job = read(trainer, policy)
    expected = "".join(f"job-node-0-{index}.job slots={slots}\n" for index in range(nodes))
    assert hosts_of(job) == expected
    assert slots_of(job) == (str(slots), str(slots))


@pytest.mark.parametrize(("given", "nodes"), [(10, 9), (2, 1), (1, 1)])
def test_runlauncherasnode_is_true(given: int, nodes: int) -> None:
    job = read(f"{{numNodes: {given}}}", AS_NODE)
    assert (job.replica_count(LAUNCHER), job.replica_count(NODE)) == (1, nodes)
    assert hosts_of(job).splitlines() == [
        "job-launcher-0-0.job slots=1",
        *(f"job-node-0-{index}.job slots=1" for index in range(nodes)),
    ]


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["OMPI_MCA_orte_default_hostfile"], [0]),
        (["OMPI_MCA_orte_default_hostfile", "OMPI_MCA_plm_rsh_args"], [0, 1]),
        (["CUSTOM", "PRTE_MCA_plm_ssh_args"], [1]),
    ],
)
def test_reserved_variables_are_refused(names: list[str], refused: list[int]) -> None:
    env = ", ".join(f"{{name: {name}, value: x}}" for name in names)
    with pytest.raises(ManifestError) as caught:
        read(f"{{env: [{env}]}}")
    paths = [finding.path for finding in caught.value.findings]
    assert paths == [f"spec.trainer.env[{index}].name" for index in refused]


def test_a_launcher_that_is_not_configured_has_the_image_only() -> None:
    job = read('{image: "mine:1", command: [serve], env: [{name: A, value: b}]}', AS_NODE)
    launcher, node = (
        job.replicas[type].template["spec"]["containers"][0] for type in (LAUNCHER, NODE)
    )
    assert launcher == {"name": "node", "image": "mine:1"}
    assert (node["image"], node["command"]) == ("mine:1", ["serve"])


@pytest.mark.parametrize("container", ["node", "main"])
@pytest.mark.parametrize("trainer", ["{}", "{numNodes: 3, numProcPerNode: 2}", f"{{{GPUS}}}"])
def test_a_written_job_reads_as_the_same_job(trainer: str, container: str) -> None:
    job = read(trainer, container=container)
    file = read_manifest_file("---\n".join(map(dump_yaml, write_train_job(job))), "again.yaml")
    assert read_train_job(file.job, file.runtimes) == job
