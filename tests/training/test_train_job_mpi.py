"""The tables of Kubeflow Trainer's plug-in ``mpi``: how many hosts, slots and variables there are.

The cases are those of ``pkg/runtime/framework/plugins/mpi/mpi_test.go`` (2.3) without those of ssh
keys, which danlu does not need. In its runtimes the trainer configures the nodes, not the launcher.
The image on launcher and nodes is that of 2.4.
"""

from __future__ import annotations

import pytest

from danlu.training.frameworks.train_job import LAUNCHER, NODE
from danlu.training.registry import find_job_framework
from danlu.training.types import Job, ReplicaId
from tests.training.frameworks.topology import FakeTopology
from tests.training.train_jobs import find_errors, read_text, write_and_read

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
    return read_text(text)


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


def test_gpus_of_the_first_job_with_resources_are_the_slots() -> None:
    """Also those of nodes that are not the trainer's step (ExtractResourcePerNodeFromRuntime)."""
    label = "{labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}"
    text = TEXT.replace(f"          metadata: {label}\n", "").replace(
        "template: {spec: {template: {spec: {containers: [{name: NAME",
        f"template: {{metadata: {label}, spec: {{template: {{spec: {{containers: [{{name: node",
    )
    text = text.replace('"node:1"', '"node:1", resources: {limits: {custom.com/gpu: 3}}')
    job = read_text(text.replace("TRAINER", "{}").replace("POLICY", "{}"))
    assert slots_of(job) == ("3", "3")


def test_subdomain_in_jobsetspec_is_used_to_endpoint() -> None:
    text = TEXT.replace("      successPol", "      network: {subdomain: nodes}\n      successPol")
    job = read_text(text.replace("TRAINER", "{}").replace("POLICY", "{}").replace("NAME", "node"))
    assert hosts_of(job) == "job-node-0-0.nodes slots=1\n"
    assert write_and_read(job) == job


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
    found = find_errors(TEXT.replace("TRAINER", f"{{env: [{env}]}}").replace("POLICY", "{}"))
    assert list(found) == [f"spec.trainer.env[{index}].name" for index in refused]


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
    assert write_and_read(job) == job
