"""PyTorchJob: ``torch.distributed`` through ``env://``, and torchrun, elastic or not.

The variables are those of the training operator 1.9 (``pkg/controller.v1/pytorch``: envvar.go,
master.go, elastic.go), in its order. It sets no rendezvous variables for a job with neither a
master nor an elastic policy (kubeflow/trainer#1991); here worker 0 then acts as the master.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from danlu.training.framework import (
    QUALIFIED_MESSAGES,
    AddedImage,
    CountsByType,
    EnvVar,
    FieldError,
    Framework,
    PodTemplate,
    ReplicaCounts,
    Verdict,
    evaluate_counts,
)
from danlu.training.pod_template import (
    append_to,
    env_unless_declared,
    find_main_container,
    pod_spec,
    replace_spec,
)
from danlu.training.types import (
    RDZV_BACKENDS,
    ElasticPolicy,
    Job,
    ReplicaId,
    ReplicaType,
    RestartPolicy,
    Topology,
)

MASTER = ReplicaType("Master")
WORKER = ReplicaType("Worker")

# The defaults of Kubeflow's flags --pytorch-init-container-image and -max-tries. The name of a
# headless Service resolves when a program asks for it, and programs retry, so nothing has to wait.
INIT_IMAGE = AddedImage(
    "alpine:3.10",
    "--pytorch-init-container-image",
    "Image of an init container in which workers wait for the master.",
    optional=True,
)
INIT_TRIES = 100

# Each sets OMP_NUM_THREADS for the processes it starts, unless it is set already.
LAUNCHERS = frozenset(
    {"torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate"}
)
_PROCESSES = r"auto|cpu|gpu|[1-9][0-9]*"
_NPROC_OPTION = re.compile(r"--nproc[-_]per[-_]node(?:=(.*))?")


class PyTorchFramework(Framework):
    """A master and workers, or workers alone."""

    name = "pytorch"
    kind = "PyTorchJob"
    plural = "pytorchjobs"
    aliases = ("torch",)
    modules = ("accelerate", "lightning", "pytorch_lightning", "torch", "transformers")
    replicas_field = "pytorchReplicaSpecs"
    spec_options = {
        "elasticPolicy": {},
        "nprocPerNode": {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": f"^({_PROCESSES})$",
        },
    }
    replica_types = (MASTER, WORKER)
    driver_types = (MASTER, WORKER)
    scaled_type = WORKER
    node_types = (MASTER, WORKER)
    ml_policy = "torch"
    messages = {WORKER: QUALIFIED_MESSAGES}
    singleton_types = (MASTER,)
    restart_policy = RestartPolicy.ON_FAILURE
    container = "pytorch"
    port_name = "pytorchjob-port"
    port = 23456
    added_images = (INIT_IMAGE,)

    def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
        """Return the rendezvous variables of torch.distributed and torchrun (``PET_…``)."""
        variables: list[EnvVar] = [("PYTHONUNBUFFERED", "1")]
        rendezvous = self._rendezvous(job, replica, topology)
        if MASTER in job.replicas:
            variables += rendezvous
        if processes := _processes_per_node(job):
            variables.append(("PET_NPROC_PER_NODE", processes))
        if job.elastic_policy is not None:
            return variables + _elastic_env(job, job.elastic_policy, topology)
        variables.append(("PET_NNODES", str(job.total_replicas)))
        if MASTER not in job.replicas:
            variables += env_unless_declared(job, replica, self.container, rendezvous)
        return variables

    def _rendezvous(self, job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
        """Return the address of the first replica, and the rank of this one.

        RANK counts nodes and WORLD_SIZE processes, as in Kubeflow (kubeflow/trainer#1790). They
        differ if ``nprocPerNode`` is a number, and then torchrun gives each process its own rank.
        """
        first = ReplicaId(self.driver_type(job), 0)
        port, host = str(topology.port(first)), topology.host(first)
        masters = job.replica_count(MASTER) if replica.type == WORKER else 0
        rank = str(replica.index + masters)
        processes = job.total_replicas * _as_number(_processes_per_node(job))
        return [
            ("MASTER_PORT", port),
            ("PET_MASTER_PORT", port),
            ("MASTER_ADDR", host),
            ("PET_MASTER_ADDR", host),
            ("WORLD_SIZE", str(processes)),
            ("RANK", rank),
            ("PET_NODE_RANK", rank),
        ]

    def evaluate(self, job: Job, counts: CountsByType) -> Verdict | None:
        """Return the verdict: an elastic job succeeds with its first worker.

        The workers of an elastic job end together: if one is done, the work is.
        """
        driver = self.driver_type(job)
        elastic = driver == WORKER and job.elastic_policy is not None
        done = True if elastic and counts.get(WORKER, ReplicaCounts()).succeeded else None
        return evaluate_counts(self.replica_types, counts, driver=driver, done=done)

    def validate(self, job: Job) -> Iterator[FieldError]:
        """Yield errors of ``nprocPerNode`` and of the elastic policy."""
        yield from super().validate(job)
        if MASTER in job.replicas:
            yield from self.check_number(job, WORKER)
        processes = job.options.get("nprocPerNode")
        if processes is not None and not re.fullmatch(_PROCESSES, str(processes)):
            hint = "auto, cpu, gpu, or a number"
            yield FieldError("spec.nprocPerNode", f"cannot be {processes!r}", hint)
        if job.elastic_policy is not None:
            yield from self._validate_elastic(job, job.elastic_policy)

    def _validate_elastic(self, job: Job, policy: ElasticPolicy) -> Iterator[FieldError]:
        path = "spec.elasticPolicy"
        if WORKER not in job.replicas:
            yield FieldError(
                f"spec.{self.replicas_field}[{WORKER}]",
                "is required with an elastic policy",
                f"add {WORKER} replicas, or remove {path}",
            )
        if policy.n_proc_per_node is not None and "nprocPerNode" in job.options:
            yield FieldError(
                f"{path}.nProcPerNode",
                "cannot be combined with spec.nprocPerNode",
                "remove it: spec.nprocPerNode replaces it",
            )
        if policy.rdzv_backend and policy.rdzv_backend not in RDZV_BACKENDS:
            message = f"cannot be {policy.rdzv_backend!r}"
            hint = f"one of {', '.join(RDZV_BACKENDS)}"
            yield FieldError(f"{path}.rdzvBackend", message, hint)

    def count_processes(self, job: Job, type: ReplicaType) -> int:
        """Return the processes per replica: torchrun's option, or ``nprocPerNode``.

        0 if a launcher chooses the number at run time (``auto``, ``gpu``).
        """
        main = find_main_container(job.replicas[type].template, self.container)
        words = [str(word) for word in (*(main.get("command") or ()), *(main.get("args") or ()))]
        number = _processes_per_node(job)
        if job.elastic_policy is not None and job.elastic_policy.n_proc_per_node is not None:
            number = str(job.elastic_policy.n_proc_per_node)
        if LAUNCHERS.isdisjoint(word.rpartition("/")[2] for word in words):
            return max(_as_number(number), 1)
        for position, word in enumerate(words):
            if option := _NPROC_OPTION.fullmatch(word):
                number = option[1] if option[1] is not None else "".join(words[position + 1 :][:1])
        return int(number) if number.isdigit() else 0

    def mutate_pod(
        self, job: Job, replica: ReplicaId, topology: Topology, template: PodTemplate
    ) -> PodTemplate:
        """Let workers wait until the master's name resolves (pytorch/initcontainer.go)."""
        if replica.type != WORKER or MASTER not in job.replicas:
            return template
        init_container = _wait_for_host(topology.host(ReplicaId(MASTER, 0)))
        spec = append_to(pod_spec(template), "initContainers", init_container)
        return replace_spec(template, spec)


def _processes_per_node(job: Job) -> str:
    """Return ``nprocPerNode``: ``auto`` unless the elastic policy's older field is set."""
    value = job.options.get("nprocPerNode")
    if value is not None:
        return str(value)
    older = job.elastic_policy and job.elastic_policy.n_proc_per_node
    return "" if older is not None else "auto"


def _as_number(processes: str) -> int:
    return int(processes) if re.fullmatch(r"[+-]?[0-9]+", processes) else 1


def _elastic_env(job: Job, policy: ElasticPolicy, topology: Topology) -> list[EnvVar]:
    first = ReplicaId(WORKER, 0)
    host = policy.rdzv_host or topology.host(first)
    port = topology.port(first) if policy.rdzv_port is None else policy.rdzv_port
    conf = ",".join(f"{pair.get('key', '')}={pair.get('value', '')}" for pair in policy.rdzv_conf)
    bounds = [bound for bound in (policy.min_replicas, policy.max_replicas) if bound is not None]
    nodes = f"{bounds[0]}:{bounds[-1]}" if bounds else str(job.replica_count(WORKER))
    variables: list[tuple[str, str | int | None]] = [
        ("PET_RDZV_ENDPOINT", f"{host}:{port}"),
        ("PET_RDZV_BACKEND", policy.rdzv_backend or "c10d"),
        ("PET_NNODES", nodes),
        ("PET_MAX_RESTARTS", policy.max_restarts),
        ("PET_NPROC_PER_NODE", policy.n_proc_per_node),
        ("PET_RDZV_ID", policy.rdzv_id or None),
        ("PET_RDZV_CONF", conf or None),
        ("PET_STANDALONE", "" if policy.standalone else None),
    ]
    return [(name, str(value)) for name, value in variables if value is not None]


def _wait_for_host(host: str) -> dict[str, object]:
    script = (
        f"err=1;for i in $(seq {INIT_TRIES}); do if nslookup {host}; then err=0 && break; fi;"
        "echo waiting for master; sleep 2; done; exit $err"
    )
    return {
        "name": "init-pytorch",
        "image": INIT_IMAGE.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "resources": {
            "limits": {"cpu": "100m", "memory": "20Mi"},
            "requests": {"cpu": "50m", "memory": "10Mi"},
        },
    }


FRAMEWORK = PyTorchFramework()
