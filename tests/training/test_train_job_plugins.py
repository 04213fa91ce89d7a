"""What TrainJobs get, compared with the tests and files of Kubeflow Trainer 2.3 (8c0f5059b).

The tables are those of ``pkg/runtime/framework/plugins/{torch,jax,xgboost,plainml}/*_test.go``, as
far as they concern variables, counts and validation, and the files of ``examples/`` and
``manifests/base/runtimes``, reduced to the fields that a reader has to understand. Runtimes with
``mlPolicy.mpi`` are not among them. A GPU is given as request and limit, as Kubernetes demands.
"""

from __future__ import annotations

from typing import Any

import pytest

from danlu.training.types import Job, ReplicaId, ReplicaType
from tests.training.train_jobs import find_errors, read_text, read_variables, write_and_read

NODE = ReplicaType("node")
ADDRESS = "test-job-node-0-0.test-job"


def step(name: str, pod: str, *, ancestor: str = "trainer", more: str = "") -> str:
    """Return a replicated job with the containers of ``pod``."""
    label = f"metadata: {{labels: {{trainer.kubeflow.org/trainjob-ancestor-step: {ancestor}}}}}, "
    label = label if ancestor else ""
    return f"{{name: {name}, {more}template: {{{label}spec: {{template: {{spec: {pod}}}}}}}}}"


PLAIN_NODE = step("node", "{containers: [{name: node, image: a}]}")


def write_job(trainer: str, policy: str, *jobs: str, spec: str = "", template: str = "") -> str:
    """Return a TrainJob whose runtime has this policy and these replicated jobs."""
    return f"""
    apiVersion: trainer.kubeflow.org/v1alpha1
    kind: TrainJob
    metadata: {{name: test-job}}
    spec: {{runtimeRef: {{name: team}}, {spec}{f"trainer: {trainer}" if trainer else ""}}}
    ---
    apiVersion: trainer.kubeflow.org/v1alpha1
    kind: ClusterTrainingRuntime
    metadata: {{name: team}}
    spec:
      {f"mlPolicy: {policy}" if policy else ""}
      template: {{spec: {{{template}replicatedJobs: [{", ".join(jobs or [PLAIN_NODE])}]}}}}
    """


def read(*args: str, **more: str) -> Job:
    return read_text(write_job(*args, **more))


def errors_of(*args: str, **more: str) -> dict[str, str]:
    return find_errors(write_job(*args, **more))


def variables_of(
    job: Job, index: int = 0, *, container: str = "node", type: str = "node"
) -> dict[str, Any]:
    return read_variables(job, ReplicaId(ReplicaType(type), index), container)


def gpus(number: int, requests: str = "") -> str:
    """Return resources with GPUs, and further requests."""
    gpu = f"example.com/gpu: {number}"
    return f"{{limits: {{{gpu}}}, requests: {{{gpu}, {requests}}}}}"


def torch_variables(nodes: str, processes: str, rank: str = "0") -> dict[str, str]:
    return {
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": processes,
        "PET_NODE_RANK": rank,
        "PET_MASTER_ADDR": ADDRESS,
        "PET_MASTER_PORT": "29500",
    }


# -- variables (TestTorch, TestJAX, TestXGBoost, TestPlainML) --------------------------------------


@pytest.mark.parametrize(
    ("trainer", "nodes", "processes"),
    [
        pytest.param("{numNodes: 2}", "2", "1", id="numNodes of the TrainJob is respected"),
        pytest.param("{resourcesPerNode: {requests: {cpu: 4}}}", "1", "4", id="CPU limit"),
        pytest.param("{image: b}", "1", "1", id="no CPU resources"),
        pytest.param("{resourcesPerNode: {requests: {cpu: 2}}}", "1", "2", id="low CPU limit"),
        pytest.param("{resourcesPerNode: {requests: {cpu: 3}}}", "1", "3", id="request only"),
        pytest.param("{resourcesPerNode: {requests: {cpu: 2.5}}}", "1", "3", id="2.5 CPUs"),
        pytest.param("{resourcesPerNode: {requests: {cpu: 2500m}}}", "1", "3", id="2500m"),
        pytest.param("{resourcesPerNode: {requests: {cpu: 0.7}}}", "1", "1", id="fractional CPU"),
        pytest.param("{resourcesPerNode: {requests: {cpu: 3.7}}}", "1", "4", id="3.7 CPUs"),
        pytest.param(f"{{resourcesPerNode: {gpus(2)}}}", "1", "auto", id="GPU request"),
        pytest.param(
            "{numProcPerNode: 3, resourcesPerNode: {requests: {cpu: 8}}}",
            "1",
            "3",
            id="an explicit number is preserved",
        ),
        pytest.param(
            f"{{resourcesPerNode: {gpus(2, 'cpu: 6')}}}",
            "1",
            "auto",
            id="GPUs win over CPUs",
        ),
        pytest.param(
            f"{{numNodes: 4, resourcesPerNode: {gpus(4, 'cpu: 8, memory: 16Gi')}}}",
            "4",
            "auto",
            id="several nodes with several GPUs",
        ),
    ],
)
def test_torch(trainer: str, nodes: str, processes: str) -> None:
    assert variables_of(read(trainer, "{torch: {}}")) == torch_variables(nodes, processes)


def test_torch_counts_the_resources_of_the_runtime_unless_the_job_has_some() -> None:
    node = step(
        "node", "{containers: [{name: node, image: a, resources: {limits: {x/gpu: 2, cpu: 4}}}]}"
    )
    assert variables_of(read("{}", "{torch: {}}", node)) == torch_variables("1", "auto")
    own = read("{resourcesPerNode: {limits: {cpu: 3}}}", "{torch: {}}", node)
    assert variables_of(own) == torch_variables("1", "3")


@pytest.mark.parametrize(
    ("trainer", "numbers", "nodes"),
    [
        pytest.param("{numNodes: 1}", "1", "1", id="single node"),
        pytest.param("{numNodes: 4}", "2", "4", id="multi-node"),
        pytest.param("{numNodes: 3}", "1", "3", id="numNodes of the TrainJob is respected"),
        pytest.param(
            f"{{numNodes: 2, resourcesPerNode: {gpus(4, 'cpu: 8')}}}",
            "1",
            "2",
            id="GPUs do not count",
        ),
    ],
)
def test_jax(trainer: str, numbers: str, nodes: str) -> None:
    job = read(trainer, f"{{numNodes: {numbers}, jax: {{}}}}")
    assert variables_of(job, int(nodes) - 1) == {
        "JAX_NUM_PROCESSES": nodes,
        "JAX_PROCESS_ID": str(int(nodes) - 1),
        "JAX_COORDINATOR_ADDRESS": f"{ADDRESS}:29500",
    }


@pytest.mark.parametrize(
    ("trainer", "resources", "workers"),
    [
        pytest.param("{numNodes: 1}", "", "1", id="single node"),
        pytest.param("{numNodes: 4}", "", "4", id="multi-node"),
        pytest.param(
            f"{{numNodes: 2, resourcesPerNode: {gpus(4, 'cpu: 8')}}}",
            "",
            "8",
            id="a worker per GPU",
        ),
        pytest.param(
            "{numNodes: 3}", f"resources: {gpus(2)}", "6", id="resources in the runtime only"
        ),
        pytest.param(
            f"{{numNodes: 2, resourcesPerNode: {gpus(3)}}}",
            f"resources: {gpus(1)}",
            "6",
            id="resources in both",
        ),
    ],
)
def test_xgboost(trainer: str, resources: str, workers: str) -> None:
    node = step("node", f"{{containers: [{{name: node, image: a, {resources}}}]}}")
    assert variables_of(read(trainer, "{xgboost: {}}", node)) == {
        "DMLC_TRACKER_URI": ADDRESS,
        "DMLC_TRACKER_PORT": "29500",
        "DMLC_TASK_ID": "0",
        "DMLC_NUM_WORKER": workers,
    }


def test_plain() -> None:
    node = step(
        "node", "{containers: [{name: node, image: a, env: [{name: CONFLICT, value: RUNTIME}]}]}"
    )
    job = read(
        "{numNodes: 200, env: [{name: CONFLICT, value: FROM_TRAINER}]}", "{numNodes: 100}", node
    )
    assert job.replica_count(NODE) == 200
    assert variables_of(job) == {"CONFLICT": "FROM_TRAINER"}


@pytest.mark.parametrize("policy", ["torch", "jax", "xgboost"])
def test_without_a_trainer_or_its_step_no_variables_are_set(policy: str) -> None:
    assert variables_of(read("", f"{{{policy}: {{}}}}")) == {}
    node = step("node", "{containers: [{name: node, image: a}]}", ancestor="")
    assert variables_of(read("{numNodes: 2}", f"{{{policy}: {{}}}}", node)) == {}


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        ("torch", "PET_NNODES"),
        ("xgboost", "DMLC_TRACKER_URI"),
        ("xgboost", "DMLC_NUM_WORKER"),
        ("jax", "JAX_PROCESS_ID"),
    ],
)
def test_reserved_variables_are_refused_for_their_policy_only(policy: str, name: str) -> None:
    trainer = f"{{env: [{{name: KEPT, value: a}}, {{name: {name}, value: a}}]}}"
    found = errors_of(trainer, f"{{{policy}: {{}}}}")
    assert list(found) == ["spec.trainer.env[1].name"]
    assert variables_of(read(trainer, "{numNodes: 1}"))[name] == "a"


# -- envInjection ---------------------------------------------------------------------------------

CHECKED_NODE = step(
    "node",
    "{initContainers: [{name: preflight-check, image: a}, {name: driver-check, image: a}],"
    " containers: [{name: sidecar, image: a}, {name: node, image: a}]}",
)
CHECKED_DATA = step(
    "dataset-initializer",
    "{initContainers: [{name: worker-check, image: a}],"
    " containers: [{name: dataset-initializer, image: a}]}",
    ancestor="dataset-initializer",
)


def injection(*targets: str) -> str:
    return f"{{numNodes: 2, torch: {{envInjection: {{targets: [{', '.join(targets)}]}}}}}}"


@pytest.mark.parametrize(
    ("targets", "injected"),
    [
        pytest.param(["{jobName: node, containerNames: [preflight-check]}"], {"preflight-check"}),
        pytest.param(
            ["{jobName: node, containerNames: [preflight-check, driver-check]}"],
            {"preflight-check", "driver-check"},
        ),
        pytest.param(["{jobName: node, containerNames: [sidecar]}"], {"sidecar"}),
        pytest.param([], set()),
        pytest.param(
            [
                "{jobName: node, containerNames: [sidecar]}",
                "{jobName: dataset-initializer, containerNames: [worker-check]}",
            ],
            {"sidecar", "worker-check"},
        ),
    ],
)
def test_containers_of_env_injection_get_the_variables(
    targets: list[str], injected: set[str]
) -> None:
    job = read("{}", injection(*targets), CHECKED_DATA, CHECKED_NODE)
    for name in ("preflight-check", "driver-check", "sidecar", "node"):
        expected = torch_variables("2", "1", "1") if name in {*injected, "node"} else {}
        assert variables_of(job, 1, container=name) == expected
    for name in ("worker-check", "dataset-initializer"):
        expected = torch_variables("2", "1") if name in injected else {}
        assert variables_of(job, container=name, type="dataset-initializer") == expected
    assert write_and_read(job) == job


def test_env_injection_does_not_depend_on_the_trainer() -> None:
    policy = injection("{jobName: node, containerNames: [sidecar]}")
    job = read("", policy, CHECKED_NODE)
    assert variables_of(job, container="sidecar") == torch_variables("2", "1")
    assert variables_of(job) == {}


@pytest.mark.parametrize(
    ("target", "field", "message"),
    [
        ("{jobName: node, containerNames: [other]}", "", "'other' not found"),
        ("{jobName: missing-job, containerNames: [sidecar]}", "", "job 'missing-job'"),
        ("{jobName: node, containerNames: [node]}", ".containerNames", "must not include"),
        ("{jobName: node, containerNames: []}", ".containerNames", "must name a container"),
    ],
)
def test_targets_of_env_injection_must_exist(target: str, field: str, message: str) -> None:
    found = errors_of("{}", injection(target), CHECKED_NODE)
    assert message in found[f"spec.mlPolicy.torch.envInjection.targets[0]{field}"]


def test_only_torch_has_env_injection() -> None:
    found = errors_of("{}", "{jax: {envInjection: {targets: []}}}")
    assert list(found) == ["spec.mlPolicy.jax.envInjection"]


# -- examples and manifests -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "trainer", "policy", "nodes", "processes"),
    [
        # examples/yaml/01-multi-node.yaml, manifests/base/runtimes/torch_distributed.yaml
        ("", "{numNodes: 3}", "torch", 3, 1),
        # examples/yaml/02-runtime-patches.yaml
        (
            "runtimePatches: [{manager: example.io/platform-team, trainingRuntimeSpec: {template:"
            " {metadata: {labels: {team: ml-platform}, annotations: {prometheus.io/port: '8080'}},"
            " spec: {replicatedJobs: [{name: node, template: {spec: {template: {spec:"
            " {serviceAccountName: training-sa, nodeSelector: {node-type: training}, tolerations:"
            " [{key: training-workload, operator: Equal, value: 'true', effect: NoSchedule}]"
            "}}}}}]}}}}], ",
            "{numNodes: 2, resourcesPerNode: {requests: {cpu: '2', memory: 4Gi},"
            " limits: {cpu: '4', memory: 8Gi}}}",
            "torch",
            2,
            2,
        ),
        # examples/yaml/03-kueue-integration.yaml
        ("suspend: true, ", "{numNodes: 3, resourcesPerNode: {requests: {cpu: 2}}}", "torch", 3, 2),
        # manifests/base/runtimes/{jax,xgboost}_distributed.yaml
        ("", "{}", "jax", 1, 1),
        ("", "{}", "xgboost", 1, 1),
    ],
)
def test_examples_are_planned(
    spec: str, trainer: str, policy: str, nodes: int, processes: int
) -> None:
    job = read(trainer, f"{{numNodes: 1, {policy}: {{}}}}", spec=spec)
    assert (job.replica_count(NODE), job.options["processes"]) == (nodes, processes)
    assert job.run_policy.suspend == ("suspend" in spec)


def test_the_example_with_volcano_is_planned() -> None:
    """examples/yaml/04-volcano-integration.yaml."""
    policy = "{numNodes: 1, torch: {}}\n      podGroupPolicy: {volcano: {}}"
    job = read("{numNodes: 4, resourcesPerNode: {requests: {cpu: '1'}}}", policy)
    assert (job.replica_count(NODE), job.options["podGroupPolicy"]) == (4, {"volcano": {}})


DATA = step(
    "dataset-initializer",
    "{containers: [{name: dataset-initializer, image: a}]}",
    ancestor="dataset-initializer",
    more="replicas: 1, ",
)
AFTER_DATA = PLAIN_NODE.replace(
    "name: node,", "name: node, dependsOn: [{name: dataset-initializer, status: Complete}],", 1
)
MOUNTED_DATA = DATA.replace(
    "image: a", "image: a, volumeMounts: [{name: initializer, mountPath: /workspace}]"
)


@pytest.mark.parametrize(
    ("spec", "trainer", "policy", "jobs", "template", "path", "reason"),
    [
        # examples/yaml/05-multi-step.yaml: Trainer's webhook refuses it for the same reason.
        (
            "initializer: {dataset: {storageUri: hf://tatsu-lab/alpaca}}, ",
            "{numNodes: 2}",
            "torch",
            [DATA, AFTER_DATA],
            "",
            "spec.initializer.dataset",
            "must have volumeMount with name - initializer",
        ),
        # manifests/base/runtimes/data-cache
        (
            "initializer: {dataset: {storageUri: 'cache://schema/table'}}, ",
            "{}",
            "torch",
            [MOUNTED_DATA, AFTER_DATA],
            "",
            "spec.initializer.dataset.storageUri",
            "data cache runs on a cluster only",
        ),
        # The same with a job that does not say from where.
        (
            "",
            "{}",
            "torch",
            [MOUNTED_DATA.replace("image: a", "image: a, env: [{name: CACHE_IMAGE, value: b}]")],
            "",
            "spec.template.spec.replicatedJobs[0].template.spec.template.spec.containers[0].env[0]",
            "data cache runs on a cluster only",
        ),
        # JobSet's webhook refuses a claim that nobody mounts.
        (
            "",
            "{}",
            "torch",
            [MOUNTED_DATA, AFTER_DATA],
            "volumeClaimPolicies: [{templates: [{metadata: {name: model}}]}], ",
            "spec.template.spec.volumeClaimPolicies[0].templates[0].metadata.name",
            "has a volumeMount 'model'",
        ),
        ("", "{command: [tune, run]}", "torch", [], "", "spec.trainer.command", "torchtune"),
        # examples/flux/*
        ("", "{numNodes: 4}", "flux", [], "", "spec.mlPolicy.flux", "is not supported"),
    ],
)
def test_other_examples_are_refused_by_name(
    spec: str, trainer: str, policy: str, jobs: list[str], template: str, path: str, reason: str
) -> None:
    found = errors_of(
        trainer, f"{{numNodes: 1, {policy}: {{}}}}", *jobs, spec=spec, template=template
    )
    assert list(found) == [path]
    assert reason in found[path]
