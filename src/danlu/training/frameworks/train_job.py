"""TrainJob: what Kubeflow Trainer's plug-ins set, by the ML policy of the runtime.

The variables are those of Kubeflow Trainer 2.3 (``pkg/runtime/framework/plugins``: torch, jax,
xgboost). They are set only if the job has ``spec.trainer``, also ``{}``. torchrun derives
those of ``torch.distributed`` from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar

from danlu.training.framework import (
    CountsByType,
    EnvVar,
    Framework,
    PodLabels,
    PodTemplate,
    Verdict,
    evaluate_counts,
    policy_rule,
)
from danlu.training.pod_template import (
    append_to,
    change_containers,
    replace_metadata,
    replace_spec,
)
from danlu.training.types import Job, ReplicaId, ReplicaType, RestartPolicy, Topology

NODE = ReplicaType("node")
LAUNCHER = ReplicaType("launcher")
DATASET_INITIALIZER = ReplicaType("dataset-initializer")
MODEL_INITIALIZER = ReplicaType("model-initializer")
#: Stages before the nodes. Their containers have their names.
INITIALIZERS = (DATASET_INITIALIZER, MODEL_INITIALIZER)

API_GROUP = "trainer.kubeflow.org"
PORT = 29500
#: JobSet's labels and annotations of pods, and those of the Jobs that it creates.
_JOB_SET, _BATCH = "jobset.sigs.k8s.io", "batch.kubernetes.io"
#: Of the random ends of names (apimachinery, pkg/util/rand).
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
#: The field of a runtime with claims that JobSet creates, and what makes them outlive a job.
POLICIES_FIELD, RETAIN = "volumeClaimPolicies", "Retain"
#: The policy whose jobs have a launcher.
MPI = "mpi"


def find_policy(name: str) -> MLPolicy:
    """Return the policy of a field of ``spec.mlPolicy``; an empty name means none."""
    return POLICIES.get(name, NO_POLICY)


def name_claim(template: str, job: str) -> str:
    """Return the name that JobSet gives the claim of a template (``GeneratePVCName``)."""
    return f"{template}-{job}"


class TrainJobFramework(Framework):
    """Nodes that run one program, after initializers.

    ``job.options`` are ``policy`` (a field of ``spec.mlPolicy`` or empty), ``processes`` (of a
    node; ``auto`` lets torchrun count the GPUs), ``hasTrainer``, JobSet's ``successPolicy`` and,
    if the runtime has them, ``podGroupPolicy``, ``runLauncherAsNode``, ``sshAuthMountPath``,
    ``envInjection`` (the names of containers by replicated job) and JobSet's
    ``volumeClaimPolicies``.
    """

    name = "trainjob"
    kind = "TrainJob"
    plural = "trainjobs"
    api_version = f"{API_GROUP}/v1alpha1"
    pod_labels = PodLabels(
        f"{_JOB_SET}/jobset-name",
        f"{_JOB_SET}/replicatedjob-name",
        f"{_BATCH}/job-completion-index",
    )
    replicas_field = "replicatedJobs"
    replica_types: ClassVar[tuple[ReplicaType, ...]] = (*INITIALIZERS, NODE)
    node_types: ClassVar[tuple[ReplicaType, ...]] = (NODE,)
    driver_types = (NODE,)
    default_type = NODE
    required_types: ClassVar[tuple[ReplicaType, ...]] = (NODE,)
    idle_types: ClassVar[tuple[ReplicaType, ...]] = INITIALIZERS
    data_directories: ClassVar[Mapping[ReplicaType, str]] = {
        DATASET_INITIALIZER: "/workspace/dataset",
        MODEL_INITIALIZER: "/workspace/model",
    }
    restart_policy = RestartPolicy.ON_FAILURE
    container = "node"
    any_container = True  # initializers' have their own names
    port_name = "trainer"
    port = PORT
    env_in_all_containers = False
    cluster_options = ("network",)
    services = False
    keeps_expired_jobs = True
    deadline_reason = "DeadlineExceeded"
    operator_rules = (
        policy_rule(API_GROUP, ["trainingruntimes"], ("get",)),
        policy_rule("", ["configmaps"], ("create", "get", "patch")),
        # Keys of ssh, for the policy mpi.
        policy_rule("", ["secrets"], ("create", "patch")),
        policy_rule("", ["persistentvolumeclaims"], ("create", "get", "patch")),
    )
    cluster_rules = (policy_rule(API_GROUP, ["clustertrainingruntimes"], ("get",)),)

    def change_suspension(self, *, suspended: bool) -> Mapping[str, Any]:
        """Return the change of ``spec``, which has no ``runPolicy``."""
        return {"suspend": suspended}

    def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> Sequence[EnvVar]:
        """Return the variables of the runtime's ML policy."""
        if replica.type != NODE or not job.options["hasTrainer"]:
            return ()
        return find_policy(job.options["policy"]).build_env(job, replica, topology)

    def build_container_env(
        self, job: Job, replica: ReplicaId, topology: Topology
    ) -> Mapping[str, Sequence[EnvVar]]:
        """Return the policy's variables for the containers of ``envInjection``.

        They get them without ``spec.trainer``, too, and have the index in their own job as rank.
        """
        names = job.options.get("envInjection", {}).get(replica.type, ())
        if not names:
            return {}
        variables = find_policy(job.options["policy"]).build_env(job, replica, topology)
        return dict.fromkeys(names, variables)

    def pod_name(self, job: Job, replica: ReplicaId) -> str:
        """Return the name that JobSet gives the replica's pod, without its random end."""
        return f"{job.name}-{replica.type}-0-{replica.index}"

    def subdomain(self, job: Job) -> str:
        """Return the Service that JobSet creates."""
        return str(job.options.get("subdomain") or job.name)

    def mark_pod(self, job: Job, replica: ReplicaId, template: PodTemplate) -> PodTemplate:
        """Return the pod with the labels, annotations and index that JobSet and its Job give it."""
        index = str(replica.index)
        marks = {
            self.pod_labels.job: job.name,
            self.pod_labels.type: str(replica.type),
            f"{_JOB_SET}/job-index": "0",
            f"{_JOB_SET}/restart-attempt": str(job.status.restarts),
            self.pod_labels.index: index,
        }
        metadata = template.get("metadata") or {}
        job_name = {f"{_BATCH}/job-name": f"{job.name}-{replica.type}-0"}
        template = replace_metadata(
            template,
            {
                "labels": {**(metadata.get("labels") or {}), **marks, **job_name},
                "annotations": {**(metadata.get("annotations") or {}), **marks},
            },
        )
        return change_containers(template, lambda each: _add_index(each, index))

    def mutate_pod(
        self, job: Job, replica: ReplicaId, topology: Topology, template: PodTemplate
    ) -> PodTemplate:
        """Return the pod with the name that JobSet and its Job give it.

        The end of the name, random there, depends on the attempt: the same decision has to give
        the same name.
        """
        host = self.pod_name(job, replica)
        attempt = f"{job.uid}/{replica}/{job.status.record(replica).attempts}"
        end = [_LETTERS[byte % len(_LETTERS)] for byte in sha256(attempt.encode()).digest()[:5]]
        template = replace_metadata(template, {"name": f"{host}-{''.join(end)}"})
        return replace_spec(template, {"hostname": host, "subdomain": self.subdomain(job)})

    def extra_objects(self, job: Job, topology: Topology) -> Sequence[Mapping[str, Any]]:
        """Return the headless Service of all replicas, and the job's claims."""
        name = self.subdomain(job)
        spec = {
            "clusterIP": "None",
            "selector": {self.pod_labels.job: job.name},
            "publishNotReadyAddresses": True,
        }
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}}
        claims = [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": _describe_claim(template["metadata"], job.name),
                "spec": template["spec"],
            }
            for policy in job.options.get(POLICIES_FIELD, ())
            for template in policy.get("templates") or ()
        ]
        return [{**service, "spec": spec}, *claims]

    def list_claims(self, job: Job) -> Mapping[str, bool]:
        """Return the claims of the job's ``volumeClaimPolicies``."""
        return {
            name_claim(template["metadata"]["name"], job.name): (
                (policy.get("retentionPolicy") or {}).get("whenDeleted") == RETAIN
            )
            for policy in job.options.get(POLICIES_FIELD, ())
            for template in policy.get("templates") or ()
        }

    def evaluate(self, job: Job, counts: CountsByType) -> Verdict | None:
        """Return the verdict: by default, all replicas of all types must succeed.

        JobSet's success policy chooses the types (``targetReplicatedJobs``), and whether one of
        them is enough (``Any``).
        """
        policy = job.options["successPolicy"]
        targets = policy.get("targetReplicatedJobs") or tuple(job.replicas)
        decide = any if policy.get("operator") == "Any" else all
        counted = (counts[ReplicaType(name)] for name in targets)
        done = decide(count.expected <= count.succeeded for count in counted)
        return evaluate_counts(self.replica_types, counts, driver=self.driver_types[0], done=done)

    def count_processes(self, job: Job, type: ReplicaType) -> int:
        """Return how many processes torchrun starts; 0 if it counts the GPUs."""
        processes = str(job.options["processes"])
        return int(processes) if processes.isdecimal() else 0


def _add_index(container: Mapping[str, Any], index: str) -> Mapping[str, Any]:
    """Return the container with the index of its pod, unless it has one, as Kubernetes does."""
    variable = {"name": "JOB_COMPLETION_INDEX", "value": index}
    declared = [each["name"] for each in container.get("env") or ()]
    return container if variable["name"] in declared else append_to(container, "env", variable)


def _describe_claim(metadata: Mapping[str, Any], job: str) -> dict[str, Any]:
    return {
        "name": name_claim(metadata["name"], job),
        "labels": {**(metadata.get("labels") or {}), FRAMEWORK.pod_labels.job: job},
        "annotations": metadata.get("annotations") or {},
    }


def _torch_env(job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
    first = ReplicaId(NODE, 0)
    return [
        ("PET_NNODES", str(job.replica_count(NODE))),
        ("PET_NPROC_PER_NODE", str(job.options["processes"])),
        ("PET_NODE_RANK", str(replica.index)),
        ("PET_MASTER_ADDR", topology.host(first)),
        ("PET_MASTER_PORT", str(topology.port(first))),
    ]


def _jax_env(job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
    first = ReplicaId(NODE, 0)
    return [
        ("JAX_NUM_PROCESSES", str(job.replica_count(NODE))),
        ("JAX_PROCESS_ID", str(replica.index)),
        ("JAX_COORDINATOR_ADDRESS", f"{topology.host(first)}:{topology.port(first)}"),
    ]


def _xgboost_env(job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
    """Return the variables of a worker; the program of node 0 starts the tracker."""
    first = ReplicaId(NODE, 0)
    workers = job.replica_count(NODE) * int(job.options["processes"])
    return [
        ("DMLC_TRACKER_URI", topology.host(first)),
        ("DMLC_TRACKER_PORT", str(topology.port(first))),
        ("DMLC_TASK_ID", str(replica.index)),
        ("DMLC_NUM_WORKER", str(workers)),
    ]


def _count_torch_processes(given: int | None, gpus: int, cpus: int) -> int | str:
    """Return the given number, else leave it to torchrun if there are GPUs: it counts them."""
    return given or ("auto" if gpus else max(1, cpus))


def _count_xgboost_workers(given: int | None, gpus: int, cpus: int) -> int:
    """Return a worker per GPU; a given number does not count."""
    return gpus or 1


@dataclass(frozen=True, kw_only=True)
class MLPolicy:
    """What a field of ``spec.mlPolicy`` of a runtime means.

    Attributes:
        build_env: Returns the variables of a node.
        reserved: The variables that ``spec.trainer.env`` must not set (``pkg/constants``).
        count_processes: Returns the number of processes of a node from ``numProcPerNode``, its
            GPUs and its CPUs.
        takes_processes: Whether ``numProcPerNode`` counts.
        injects_env: Whether further containers can get the variables (``envInjection``).
        launchers: Programs and modules that read the variables and start the processes.
        launched: The variables that these set for the processes.
        image: Of the nodes of the runtime that Kubeflow Trainer installs for this policy
            (``manifests/base/runtimes``).
    """

    build_env: Callable[[Job, ReplicaId, Topology], list[EnvVar]]
    reserved: tuple[str, ...] = ()
    count_processes: Callable[[int | None, int, int], int | str] = lambda given, gpus, cpus: 1
    takes_processes: bool = False
    injects_env: bool = False
    launchers: tuple[str, ...] = ()
    launched: tuple[str, ...] = ()
    image: str


POLICIES: Mapping[str, MLPolicy] = {
    "torch": MLPolicy(
        build_env=_torch_env,
        reserved=(
            *("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK"),
            *("PET_MASTER_ADDR", "PET_MASTER_PORT"),
        ),
        count_processes=_count_torch_processes,
        takes_processes=True,
        injects_env=True,
        launchers=("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        launched=("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        image="pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime",
    ),
    "jax": MLPolicy(
        build_env=_jax_env,
        # Trainer lets spec.trainer.env override them, so that all nodes had the same process ID.
        reserved=("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"),
        image="nvcr.io/nvidia/jax:25.10-py3",
    ),
    "xgboost": MLPolicy(
        build_env=_xgboost_env,
        reserved=("DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER"),
        count_processes=_count_xgboost_workers,
        image="ghcr.io/kubeflow/trainer/xgboost-runtime",
    ),
    MPI: MLPolicy(
        build_env=lambda job, replica, topology: [],  # by train_job/mpi.py
        reserved=(
            *("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"),
            *("OMPI_MCA_orte_keep_fqdn_hostnames", "PRTE_MCA_prte_keep_fqdn_hostnames"),
            *("OMPI_MCA_orte_set_default_slots", "PRTE_MCA_prte_set_default_slots"),
            *("OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_args"),
        ),
        count_processes=lambda given, gpus, cpus: given or max(1, gpus),
        takes_processes=True,
        image="ghcr.io/kubeflow/trainer/deepspeed-runtime",
    ),
}
#: What a runtime without a policy means: a number of nodes.
NO_POLICY = MLPolicy(build_env=lambda job, replica, topology: [], image="python:3.11")
#: Kubeflow Trainer's further ones.
UNSUPPORTED_POLICIES = ("flux",)

FRAMEWORK = TrainJobFramework()
