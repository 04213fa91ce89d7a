"""TrainJob: what Kubeflow Trainer's plug-ins set, by the ML policy of the runtime.

The variables are those of Kubeflow Trainer 2.3 (``pkg/runtime/framework/plugins``: torch, jax,
xgboost). They are set only if the job has ``spec.trainer``, also ``{}``. torchrun makes the
variables of ``torch.distributed`` out of its own. Jobs of the policy ``mpi`` are MPIJobs here
(:mod:`danlu.training.train_job.reader`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from danlu.training.framework import CountsByType, EnvVar, Framework, Verdict, evaluate_counts
from danlu.training.types import Job, ReplicaId, ReplicaType, RestartPolicy, Topology

NODE = ReplicaType("node")
DATASET_INITIALIZER = ReplicaType("dataset-initializer")
MODEL_INITIALIZER = ReplicaType("model-initializer")
#: Stages before the nodes. Their containers have their names.
INITIALIZERS = (DATASET_INITIALIZER, MODEL_INITIALIZER)

PORT = 29500


class TrainJobFramework(Framework):
    """Nodes that run one program, after initializers.

    ``job.options`` are ``policy`` (``torch``, ``jax``, ``xgboost`` or empty), ``processes`` (of a
    node; ``auto`` lets torchrun count the GPUs), ``hasTrainer`` and JobSet's ``successPolicy``.
    """

    name = "trainjob"
    kind = "TrainJob"
    plural = "trainjobs"
    api_version = "trainer.kubeflow.org/v1alpha1"
    replicas_field = "replicatedJobs"
    replica_types = (*INITIALIZERS, NODE)
    driver_types = (NODE,)
    default_type = NODE
    required_types = (NODE,)
    idle_types = INITIALIZERS
    restart_policy = RestartPolicy.ON_FAILURE
    container = "node"
    any_container = True  # initializers' have their own names
    port_name = "trainer"
    port = PORT
    env_in_all_containers = False

    def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> Sequence[EnvVar]:
        """Return the variables of the runtime's ML policy."""
        build = _POLICIES.get(job.options["policy"])
        if build is None or replica.type != NODE or not job.options["hasTrainer"]:
            return ()
        return build(job, replica, topology)

    def pod_name(self, job: Job, replica: ReplicaId) -> str:
        """Return the name that JobSet gives the replica's pod, without its random end."""
        return f"{job.name}-{replica.type}-0-{replica.index}"

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
        return evaluate_counts(self.replica_types, counts, driver=NODE, done=done)

    def count_processes(self, job: Job, type: ReplicaType) -> int:
        """Return how many processes torchrun starts; 0 if it counts the GPUs."""
        processes = str(job.options["processes"])
        return int(processes) if processes.isdecimal() else 0


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


_POLICIES: Mapping[str, Callable[[Job, ReplicaId, Topology], list[EnvVar]]] = {
    "torch": _torch_env,
    "jax": _jax_env,
    "xgboost": _xgboost_env,
}


def reserved_variables(policy: str) -> Sequence[str]:
    """Return the variables that ``spec.trainer.env`` must not set (``pkg/constants``)."""
    return _RESERVED.get(policy, ())


_RESERVED: Mapping[str, Sequence[str]] = {
    "torch": (
        "PET_NNODES",
        "PET_NPROC_PER_NODE",
        "PET_NODE_RANK",
        "PET_MASTER_ADDR",
        "PET_MASTER_PORT",
    ),
    "xgboost": ("DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER"),
    "mpi": (
        "OMPI_MCA_orte_default_hostfile",
        "OMPI_MCA_plm_rsh_args",
        "OMPI_MCA_orte_keep_fqdn_hostnames",
        "OMPI_MCA_orte_set_default_slots",
    ),
}

FRAMEWORK = TrainJobFramework()
