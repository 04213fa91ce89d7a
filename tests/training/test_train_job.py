"""TrainJobs and runtimes of Kubeflow Trainer: what they become, and what is refused.

The expected variables are those of Kubeflow Trainer's tests of its plug-ins
(``pkg/runtime/framework/plugins/{torch,jax,xgboost,mpi}/*_test.go``, 2.3).
"""

from __future__ import annotations

import textwrap

import pytest

from danlu.training.document import ManifestError
from danlu.training.framework import ReplicaCounts
from danlu.training.registry import TRAIN_JOB, find_job_framework, list_frameworks
from danlu.training.rendering import render_pod
from danlu.training.types import (
    ConditionType,
    Dependency,
    Job,
    JobRestartPolicy,
    ReplicaId,
    ReplicaType,
)
from tests.training.train_jobs import (
    INDEX,
    ClusterNames,
    find_container,
    find_errors,
    read_text,
    read_variables,
    write_and_read,
)

NODE = ReplicaType("node")

JOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: digits}
spec:
  runtimeRef: {name: torch-distributed}
"""

STAGES = """
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: staged}
spec:
  mlPolicy: {numNodes: 2, torch: {}}
  template:
    spec:
      replicatedJobs:
      - name: dataset-initializer
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: dataset-initializer}}
          spec:
            template:
              spec:
                containers:
                - name: dataset-initializer
                  image: data:1
                  env: [{name: STORAGE_URI, value: "file:///old"}, {name: KEPT, value: "1"}]
                  volumeMounts: [{name: initializer, mountPath: /workspace}]
                volumes: [{name: initializer, emptyDir: {}}]
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            backoffLimit: 2
            template:
              spec:
                containers:
                - name: node
                  image: train:1
                  env: [{name: SEED, value: "1"}, {name: LEVEL, value: info}]
                  resources: {limits: {cpu: 3, memory: 1Gi}}
                - {name: logs, image: logs:1}
"""


WAITING = STAGES.replace(
    "      - name: node\n        template:",
    "      - name: node\n"
    "        dependsOn: [{name: dataset-initializer, status: Complete}]\n"
    "        template:",
)


def write_job(fields: str = "", *, runtime: str = "", more: str = "") -> str:
    """Return the TrainJob with further fields of its spec."""
    job = JOB if not runtime else JOB.replace("{name: torch-distributed}", runtime)
    return job + textwrap.indent(textwrap.dedent(fields), "  ") + more


def read(fields: str = "", *, runtime: str = "", more: str = "") -> Job:
    return read_text(write_job(fields, runtime=runtime, more=more))


def errors_of(fields: str, *, runtime: str = "", more: str = "") -> dict[str, str]:
    return find_errors(write_job(fields, runtime=runtime, more=more))


def variables_of(job: Job, index: int = 0) -> dict[str, str]:
    return read_variables(job, ReplicaId(NODE, index))


# -- variables ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trainer", "processes"),
    [
        ("{}", "1"),
        ("{resourcesPerNode: {requests: {cpu: 2}, limits: {cpu: 4}}}", "2"),
        ("{resourcesPerNode: {limits: {cpu: 1500m}}}", "2"),
        ("{resourcesPerNode: {requests: {cpu: 100m}}}", "1"),
        ("{resourcesPerNode: {limits: {cpu: 8, nvidia.com/gpu: 2}}}", "auto"),
        ("{numProcPerNode: 3, resourcesPerNode: {limits: {nvidia.com/gpu: 2}}}", "3"),
    ],
)
def test_torch_gets_the_variables_of_the_torch_plugin(trainer: str, processes: str) -> None:
    job = read(f"trainer: {trainer}")
    assert variables_of(job) == {
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": processes,
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "digits-node-0-0.digits",
        "PET_MASTER_PORT": "29500",
    }


def test_each_node_has_its_rank_and_the_number_of_nodes() -> None:
    job = read("trainer: {numNodes: 3, env: [{name: A, value: b}]}")
    ranks = [variables_of(job, index) for index in range(3)]
    assert [each["PET_NODE_RANK"] for each in ranks] == ["0", "1", "2"]
    assert {each["PET_NNODES"] for each in ranks} == {"3"}
    assert {each["A"] for each in ranks} == {"b"}
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & ranks[0].keys()


def test_without_a_trainer_no_variables_are_set() -> None:
    assert variables_of(read()) == {}


def test_jax_and_xgboost_get_the_variables_of_their_plugins() -> None:
    jax = read("trainer: {numNodes: 2}", runtime="{name: jax-distributed}")
    assert variables_of(jax, 1) == {
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
        "JAX_COORDINATOR_ADDRESS": "digits-node-0-0.digits:29500",
    }
    xgboost = read(
        "trainer: {numNodes: 2, resourcesPerNode: {limits: {nvidia.com/gpu: 4}}}",
        runtime="{name: xgboost-distributed}",
    )
    assert variables_of(xgboost, 1) == {
        "DMLC_TRACKER_URI": "digits-node-0-0.digits",
        "DMLC_TRACKER_PORT": "29500",
        "DMLC_TASK_ID": "1",
        "DMLC_NUM_WORKER": "8",
    }


# -- what a job is made of ------------------------------------------------------------------------


def test_the_trainer_overrides_the_container_of_the_runtime() -> None:
    job = read(
        """
        trainer:
          image: mine:2
          command: [python]
          args: [train.py]
          env: [{name: LEVEL, value: debug}, {name: NEW, value: "1"}]
          resourcesPerNode: {limits: {cpu: 1}, requests: {cpu: 1}}
        """,
        runtime="{kind: TrainingRuntime, name: staged}",
        more=STAGES,
    )
    assert job.replica_count(NODE) == 2
    node = find_container(job, ReplicaId(NODE, 1))
    assert (node["image"], node["command"], node["args"]) == ("mine:2", ["python"], ["train.py"])
    assert node["resources"] == {"limits": {"cpu": 1, "memory": "1Gi"}, "requests": {"cpu": 1}}
    names = [variable["name"] for variable in node["env"]]
    assert names[:3] == ["SEED", "LEVEL", "NEW"]
    assert variables_of(job)["LEVEL"] == "debug"
    assert read_variables(job, ReplicaId(NODE, 0), "logs") == {}
    assert job.run_policy.backoff_limit == 2


def test_initializers_get_the_address_and_the_variables_of_their_data() -> None:
    job = read(
        """
        initializer:
          dataset:
            storageUri: hf://team/data
            env: [{name: SPLIT, value: train}]
            secretRef: {name: token}
        """,
        runtime="{kind: TrainingRuntime, name: staged}",
        more=STAGES,
    )
    stage = ReplicaId(ReplicaType("dataset-initializer"), 0), "dataset-initializer"
    variables = {"STORAGE_URI": "hf://team/data", "KEPT": "1", "SPLIT": "train"}
    assert read_variables(job, *stage) == variables
    assert find_container(job, *stage)["envFrom"] == [{"secretRef": {"name": "token"}}]


def test_patches_of_all_managers_are_merged_into_the_runtime() -> None:
    job = read(
        """
        trainer: {}
        runtimePatches:
        - manager: team.example/one
          trainingRuntimeSpec:
            template:
              spec:
                replicatedJobs:
                - name: node
                  template:
                    spec:
                      template:
                        spec:
                          nodeSelector: {zone: a}
                          volumes: [{name: data, emptyDir: {}}]
                          containers:
                          - name: node
                            volumeMounts: [{name: data, mountPath: /data}]
                          - name: logs
                            env: [{name: LEVEL, value: debug}]
        - manager: team.example/two
          trainingRuntimeSpec:
            template:
              spec:
                replicatedJobs:
                - {name: node, template: {spec: {template: {spec: {nodeSelector: {disk: ssd}}}}}}
        """,
        runtime="{kind: TrainingRuntime, name: staged}",
        more=STAGES,
    )
    pod = render_pod(job, TRAIN_JOB, ReplicaId(NODE, 0), ClusterNames("digits"), for_cluster=False)
    pod = pod["spec"]
    assert pod["nodeSelector"] == {"zone": "a", "disk": "ssd"}
    assert [item["name"] for item in pod["containers"]] == ["node", "logs"]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    assert pod["containers"][0]["image"] == "train:1"
    assert read_variables(job, ReplicaId(NODE, 0), "logs") == {"LEVEL": "debug"}


def test_policies_of_the_whole_job_are_kept() -> None:
    job = read("suspend: true\nactiveDeadlineSeconds: 60\nmanagedBy: kueue.x-k8s.io/multikueue")
    policy = job.run_policy
    assert (policy.suspend, policy.active_deadline_seconds) == (True, 60)
    assert policy.managed_by == "kueue.x-k8s.io/multikueue"
    assert policy.backoff_limit == 6, "a Job of Kubernetes has this limit"


def test_stages_wait_for_what_they_depend_on() -> None:
    job = read(runtime="{kind: TrainingRuntime, name: staged}", more=WAITING)
    initializer = ReplicaType("dataset-initializer")
    assert job.replicas[NODE].depends_on == (Dependency(initializer, "Complete"),)
    assert job.replicas[initializer].depends_on == ()


def test_a_failure_policy_restarts_the_whole_job() -> None:
    more = STAGES.replace(
        "      replicatedJobs:", "      failurePolicy: {maxRestarts: 3}\n      replicatedJobs:"
    )
    runtime = "{kind: TrainingRuntime, name: staged}"
    found = errors_of("", runtime=runtime, more=more)
    path = "spec.template.spec.replicatedJobs[{}].template.spec.backoffLimit"
    assert found == {
        path.format(0): "must be 0 with a failurePolicy; it is 6",
        path.format(1): "must be 0 with a failurePolicy; it is 2",
    }
    zero = more.replace("backoffLimit: 2", "backoffLimit: 0").replace(
        "          spec:\n            template:",
        "          spec:\n            backoffLimit: 0\n            template:",
        1,
    )
    job = read(runtime=runtime, more=zero)
    assert job.job_restart_policy == JobRestartPolicy(3)


def test_success_policy_chooses_the_jobs_that_decide() -> None:
    done, running = ReplicaCounts(expected=2, succeeded=2), ReplicaCounts(expected=1, active=1)
    counts = {ReplicaType("dataset-initializer"): running, NODE: done}
    more = STAGES.replace(
        "      replicatedJobs:",
        "      successPolicy: {operator: All, targetReplicatedJobs: [node]}\n      replicatedJobs:",
    )
    runtime = "{kind: TrainingRuntime, name: staged}"
    waiting = TRAIN_JOB.evaluate(read(runtime=runtime, more=STAGES), counts)
    assert waiting is None or waiting.condition is ConditionType.RUNNING
    verdict = TRAIN_JOB.evaluate(read(runtime=runtime, more=more), counts)
    assert verdict is not None
    assert verdict.condition is ConditionType.SUCCEEDED


@pytest.mark.parametrize("more", ["", STAGES, WAITING])
def test_a_written_job_reads_as_the_same_job(more: str) -> None:
    runtime = "{kind: TrainingRuntime, name: staged}" if more else ""
    job = read(
        "trainer: {numNodes: 3, command: [train]}\nsuspend: true", runtime=runtime, more=more
    )
    assert write_and_read(job) == job


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        ("trainer: {numNode: 2}", "spec.trainer.numNode", "unknown field"),
        ("trainer: {numProcPerNode: 0}", "spec.trainer.numProcPerNode", "must be at least 1"),
        (
            "trainer: {env: [{name: PET_NNODES, value: '1'}]}",
            "spec.trainer.env[0].name",
            "reserved envs: PET_NNODES",
        ),
        ("trainer: {command: [tune, run]}", "spec.trainer.command", "torchtune"),
        ("initializer: {model: {storageUri: data}}", "spec.initializer.model.storageUri", "URI"),
        ("managedBy: me", "spec.managedBy", "cannot be 'me'"),
        ("runtimePatches: [{manager: me}]", "spec.runtimePatches[0].manager", "domain-prefixed"),
        ("podTemplateOverrides: []", "spec.podTemplateOverrides", "unknown field"),
    ],
)
def test_invalid_fields_are_refused_by_path(fields: str, path: str, message: str) -> None:
    found = errors_of(fields)
    assert message in found[path], found


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("{name: other}", "must not have replicated job that doesn't exist"),
        (
            "{name: node, template: {spec: {template: {spec: {containers: [{name: x}]}}}}}",
            "must not have a container 'x'",
        ),
        (
            "{name: node, template: {spec: {template: {spec: {containers:"
            " [{name: node, env: [{name: A, value: b}]}]}}}}}",
            "must not have envs for the node container",
        ),
    ],
)
def test_invalid_patches_are_refused(patch: str, message: str) -> None:
    fields = f"""
    runtimePatches:
    - manager: a.example/b
      trainingRuntimeSpec: {{template: {{spec: {{replicatedJobs: [{patch}]}}}}}}
    """
    assert message in "".join(errors_of(fields).values())


def test_pods_have_the_labels_and_the_index_of_jobset() -> None:
    mine = f"{{name: own, image: a, env: [{{name: {INDEX}, value: x}}]}}"
    more = STAGES.replace("{name: logs, image: logs:1}", mine)
    job = read("trainer: {}", runtime="{kind: TrainingRuntime, name: staged}", more=more)
    pod = render_pod(job, TRAIN_JOB, ReplicaId(NODE, 1), ClusterNames("digits"), for_cluster=False)
    for field in ("labels", "annotations"):
        marks = pod["metadata"][field]
        assert marks["batch.kubernetes.io/job-completion-index"] == "1"
        assert marks["jobset.sigs.k8s.io/jobset-name"] == "digits"
        assert marks["jobset.sigs.k8s.io/replicatedjob-name"] == "node"
    found = [
        [variable["value"] for variable in container["env"] if variable["name"] == INDEX]
        for container in pod["spec"]["containers"]
    ]
    assert found == [["1"], ["x"]]  # the manifest's wins


def test_an_initializer_that_the_runtime_lacks_is_refused() -> None:
    found = errors_of(
        "initializer: {model: {storageUri: 'hf://a/b'}}",
        runtime="{kind: TrainingRuntime, name: staged}",
        more=STAGES,
    )
    assert (
        found["spec.initializer.model"]
        == "the runtime must have a replicated job model-initializer"
    )


def test_an_initializer_without_its_volume_is_refused() -> None:
    found = errors_of(
        "initializer: {dataset: {storageUri: 'hf://a/b'}}",
        runtime="{kind: TrainingRuntime, name: staged}",
        more=STAGES.replace("name: initializer, mount", "name: other, mount"),
    )
    assert "must have volumeMount with name - initializer" in found["spec.initializer.dataset"]


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("torch: {}", "flux: {}", "spec.mlPolicy.flux"),
        ("torch: {}", "torch: {}, jax: {}", "spec.mlPolicy"),
        (
            "- name: node\n        template",
            "- name: evaluator\n        template",
            "spec.template.spec.replicatedJobs[1].name",
        ),
        (
            "            backoffLimit: 2",
            "            podFailurePolicy: {rules: []}",
            "spec.template.spec.replicatedJobs[1].template.spec.podFailurePolicy",
        ),
    ],
)
def test_what_a_runtime_needs_and_danlu_lacks_is_refused(old: str, new: str, path: str) -> None:
    assert old in STAGES
    more = STAGES.replace(old, new)
    assert path in errors_of("", runtime="{kind: TrainingRuntime, name: staged}", more=more)


MPI = "{name: deepspeed-distributed}"
LAUNCHER = ReplicaType("launcher")


def mpi_files_of(job: Job) -> dict[str, str]:
    framework = find_job_framework(job)
    files = framework.files(job, ClusterNames("digits"), ())
    return {name: file.text for name, file in files.items()}


@pytest.mark.parametrize(
    ("trainer", "hosts", "slots"),
    [
        # The launcher is a node, too: "runLauncherAsNode is true" of mpi_test.go.
        ("{}", ["launcher-0-0", "node-0-0"], 1),
        ("{numNodes: 1}", ["launcher-0-0", "node-0-0"], 1),
        ("{numNodes: 3}", ["launcher-0-0", "node-0-0", "node-0-1"], 1),
        ("{numProcPerNode: 2}", ["launcher-0-0", "node-0-0"], 2),
        ("{resourcesPerNode: {limits: {example/gpu: 5}}}", ["launcher-0-0", "node-0-0"], 5),
        (
            "{numProcPerNode: 2, resourcesPerNode: {limits: {example/gpu: 5}}}",
            ["launcher-0-0", "node-0-0"],
            2,
        ),
    ],
)
def test_mpi_gets_the_host_file_and_variables_of_its_plugin(
    trainer: str, hosts: list[str], slots: int
) -> None:
    job = read(f"trainer: {trainer}", runtime=MPI)
    lines = "".join(f"digits-{host}.digits slots={slots}\n" for host in hosts)
    assert mpi_files_of(job)["hostfile"] == lines
    framework = find_job_framework(job)
    variables = dict(framework.build_env(job, ReplicaId(LAUNCHER, 0), ClusterNames("digits")))
    assert {name: value for name, value in variables.items() if "_MCA_" in name} == {
        "OMPI_MCA_orte_default_hostfile": "/etc/danlu/hostfile",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_set_default_slots": str(slots),
        "OMPI_MCA_plm_rsh_agent": "/etc/danlu/kubexec.sh",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "PRTE_MCA_prte_default_hostfile": "/etc/danlu/hostfile",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "false",
        "PRTE_MCA_prte_set_default_slots": str(slots),
        "PRTE_MCA_plm_ssh_args": "-o ConnectionAttempts=10",
        "PRTE_MCA_plm_ssh_agent": "/etc/danlu/kubexec.sh",
    }
    assert framework.build_env(job, ReplicaId(NODE, 0), ClusterNames("digits")) == ()


def test_without_a_launcher_that_computes_all_nodes_are_nodes() -> None:
    job = read(
        "trainer: {numNodes: 2, image: own:1, env: [{name: A, value: b}]}",
        runtime=TEAM,
        more=MPI_RUNTIME,
    )
    lines = "".join(f"digits-node-0-{index}.digits slots=2\n" for index in range(2))
    assert mpi_files_of(job)["hostfile"] == lines
    node, launcher = (
        job.replicas[type].template["spec"]["containers"][0] for type in (NODE, LAUNCHER)
    )
    assert node == {"name": "node", "image": "own:1", "command": ["/usr/sbin/sshd", "-De"]}
    assert launcher["env"] == [{"name": "A", "value": "b"}]


def test_the_launcher_of_mpi_waits_for_the_nodes_and_decides() -> None:
    job = read("trainer: {image: own:1, env: [{name: A, value: b}]}", runtime=MPI)
    assert job.replicas[LAUNCHER].depends_on == (Dependency(NODE, "Ready"),)
    for spec in job.replicas.values():
        (container,) = spec.template["spec"]["containers"]
        assert (container["image"], container["env"]) == ("own:1", [{"name": "A", "value": "b"}])
    framework = find_job_framework(job)
    server = ["/usr/sbin/sshd", "-De"]
    assert framework.adapt_command(job, NODE, server) == ("sleep", "365d")
    counts = {
        NODE: ReplicaCounts(expected=1, active=1),
        LAUNCHER: ReplicaCounts(expected=1, succeeded=1),
    }
    verdict = framework.evaluate(job, counts)
    assert verdict is not None
    assert verdict.condition is ConditionType.SUCCEEDED


MPI_RUNTIME = """
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: team}
spec:
  mlPolicy: {numNodes: 1, mpi: {numProcPerNode: 2, mpiImplementation: OpenMPI}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          spec:
            template:
              spec: {containers: [{name: node, image: "i:1", command: [/usr/sbin/sshd, -De]}]}
      - name: launcher
        dependsOn: [{name: node, status: Ready}]
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec: {template: {spec: {containers: [{name: node, image: "i:1"}]}}}
"""
TEAM = "{kind: TrainingRuntime, name: team}"


@pytest.mark.parametrize(("runtime", "more"), [(MPI, ""), (TEAM, MPI_RUNTIME)])
def test_a_written_mpi_job_reads_as_the_same_job(runtime: str, more: str) -> None:
    job = read("trainer: {numNodes: 3}", runtime=runtime, more=more)
    assert write_and_read(job) == job


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("OpenMPI}", "Intel}", "spec.mlPolicy.mpi.mpiImplementation"),
        ("numNodes: 1", "numNodes: 2", "spec.replicatedJobs[launcher].replicas"),
    ],
)
def test_what_an_mpi_runtime_cannot_have_is_refused(old: str, new: str, path: str) -> None:
    assert path in errors_of("", runtime=TEAM, more=MPI_RUNTIME.replace(old, new))


def test_reserved_variables_of_mpi_are_refused() -> None:
    fields = "trainer: {env: [{name: OMPI_MCA_plm_rsh_args, value: x}]}"
    assert (
        "must not have reserved envs" in errors_of(fields, runtime=MPI)["spec.trainer.env[0].name"]
    )


def test_an_unknown_runtime_is_named_with_those_that_exist() -> None:
    with pytest.raises(ManifestError) as caught:
        read(runtime="{name: torch-distribute}")
    (finding,) = caught.value.findings
    assert finding.message == "ClusterTrainingRuntime 'torch-distribute' not found"
    assert "torch-distributed" in finding.hint
    assert caught.value.span is not None


def test_a_train_job_is_no_framework_to_choose() -> None:
    assert TRAIN_JOB not in list_frameworks()
