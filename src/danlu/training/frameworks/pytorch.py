"""PyTorchJob: ``torch.distributed`` through ``env://``, and torchrun, elastic or not.

The variables are those of the training operator 1.9 (``pkg/controller.v1/pytorch``: envvar.go,
master.go, elastic.go), in its order. It gives a job with neither a master nor an elastic policy
nothing to meet by (kubeflow/trainer#1991); here worker 0 takes the master's place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from danlu.training.framework import Finding, Framework, Tally, Template, Variable, Verdict
from danlu.training.frameworks.pods import extended, unless_given, with_spec
from danlu.training.frameworks.replicas import (
    at_least_one,
    count,
    exactly_one,
    first_present,
    leader,
    total,
    verdict,
)
from danlu.training.types import (
    ElasticPolicy,
    Job,
    ReplicaId,
    ReplicaType,
    RestartPolicy,
    Topology,
)

__all__ = ["FRAMEWORK"]

MASTER = ReplicaType("Master")
WORKER = ReplicaType("Worker")
TYPES = (MASTER, WORKER)
FIELD = "pytorchReplicaSpecs"
CONTAINER = "pytorch"
BACKENDS = ("c10d", "etcd", "etcd-v2")

# The defaults of the operator's flags --pytorch-init-container-image and -max-tries.
INIT_IMAGE = "alpine:3.10"
INIT_TRIES = 100


def _environment(job: Job, replica: ReplicaId, topology: Topology) -> list[Variable]:
    variables: list[Variable] = [("PYTHONUNBUFFERED", "1")]
    if MASTER in job.replicas:
        variables += _rendezvous(job, replica, topology)
    if processes := _processes_per_node(job):
        variables.append(("PET_NPROC_PER_NODE", processes))
    if job.elastic_policy is not None:
        return variables + _elastic(job, job.elastic_policy, topology)
    variables.append(("PET_NNODES", str(total(job))))
    if MASTER not in job.replicas:
        ours = _rendezvous(job, replica, topology)
        variables += unless_given(job, replica, CONTAINER, ours)
    return variables


def _rendezvous(job: Job, replica: ReplicaId, topology: Topology) -> list[Variable]:
    """Where the first replica is, and which one this is.

    RANK counts nodes and WORLD_SIZE processes, as in Kubeflow (kubeflow/trainer#1790); they differ
    where ``nprocPerNode`` is a number, and then torchrun gives each process its own.
    """
    first = ReplicaId(first_present(job, MASTER, WORKER), 0)
    port, host = str(topology.port(first)), topology.host(first)
    behind = count(job, MASTER) if replica.type == WORKER else 0
    rank = str(replica.index + behind)
    return [
        ("MASTER_PORT", port),
        ("PET_MASTER_PORT", port),
        ("MASTER_ADDR", host),
        ("PET_MASTER_ADDR", host),
        ("WORLD_SIZE", str(total(job) * _as_number(_processes_per_node(job)))),
        ("RANK", rank),
        ("PET_NODE_RANK", rank),
    ]


def _processes_per_node(job: Job) -> str:
    """``nprocPerNode``, which is ``auto`` unless the old field of the elastic policy is set."""
    value = job.options.get("nprocPerNode")
    if value is not None:
        return str(value)
    old = job.elastic_policy and job.elastic_policy.n_proc_per_node
    return "" if old is not None else "auto"


def _as_number(processes: str) -> int:
    return int(processes) if re.fullmatch(r"[+-]?[0-9]+", processes) else 1


def _elastic(job: Job, policy: ElasticPolicy, topology: Topology) -> list[Variable]:
    first = ReplicaId(WORKER, 0)
    host = policy.rdzv_host or topology.host(first)
    port = topology.port(first) if policy.rdzv_port is None else policy.rdzv_port
    conf = ",".join(f"{one.get('key', '')}={one.get('value', '')}" for one in policy.rdzv_conf)
    given: list[tuple[str, str | int | None]] = [
        ("PET_RDZV_ENDPOINT", f"{host}:{port}"),
        ("PET_RDZV_BACKEND", policy.rdzv_backend or "c10d"),
        ("PET_NNODES", _nodes(job, policy)),
        ("PET_MAX_RESTARTS", policy.max_restarts),
        ("PET_NPROC_PER_NODE", policy.n_proc_per_node),
        ("PET_RDZV_ID", policy.rdzv_id or None),
        ("PET_RDZV_CONF", conf or None),
        ("PET_STANDALONE", "" if policy.standalone else None),
    ]
    return [(name, str(value)) for name, value in given if value is not None]


def _nodes(job: Job, policy: ElasticPolicy) -> str:
    bounds = [one for one in (policy.min_replicas, policy.max_replicas) if one is not None]
    return f"{bounds[0]}:{bounds[-1]}" if bounds else str(count(job, WORKER))


def _outcome(job: Job, tallies: Mapping[ReplicaType, Tally]) -> Verdict | None:
    driver = first_present(job, MASTER, WORKER)
    elastic = driver == WORKER and job.elastic_policy is not None
    # The workers of an elastic job end together: one that is through means that the work is.
    done = True if elastic and tallies.get(WORKER, Tally()).succeeded else None
    return verdict(TYPES, tallies, driver=driver, done=done)


def _check(job: Job) -> Iterator[Finding]:
    yield from exactly_one(job, MASTER, field=FIELD)
    yield from at_least_one(job, WORKER, field=FIELD)
    processes = job.options.get("nprocPerNode")
    if processes is not None and not re.fullmatch(r"auto|cpu|gpu|[1-9][0-9]*", str(processes)):
        yield Finding(
            "spec.nprocPerNode", f"cannot be {processes!r}", "auto, cpu, gpu, or a number"
        )
    if job.elastic_policy is not None:
        yield from _check_elastic(job, job.elastic_policy)


def _check_elastic(job: Job, policy: ElasticPolicy) -> Iterator[Finding]:
    path = "spec.elasticPolicy"
    if WORKER not in job.replicas:
        yield Finding(
            f"spec.{FIELD}[{WORKER}]",
            "is needed where there is an elastic policy",
            f"add {WORKER} replicas, or take {path} out",
        )
    if policy.n_proc_per_node is not None and "nprocPerNode" in job.options:
        yield Finding(
            f"{path}.nProcPerNode",
            "cannot stand beside spec.nprocPerNode",
            "take it out: spec.nprocPerNode has its place",
        )
    low, high = policy.min_replicas, policy.max_replicas
    if low is not None and high is not None and low > high:
        yield Finding(f"{path}.minReplicas", f"{low} is more than maxReplicas, {high}")
    if policy.rdzv_backend and policy.rdzv_backend not in BACKENDS:
        yield Finding(
            f"{path}.rdzvBackend",
            f"cannot be {policy.rdzv_backend!r}",
            f"one of {', '.join(BACKENDS)}",
        )


def _leader(job: Job) -> ReplicaId:
    return leader(job, MASTER, WORKER)


def _decorate(job: Job, replica: ReplicaId, topology: Topology, template: Template) -> Template:
    """Let workers wait until the master's name resolves (pytorch/initcontainer.go)."""
    if replica.type != WORKER or MASTER not in job.replicas:
        return template
    waiting = _init_container(topology.host(ReplicaId(MASTER, 0)))
    return with_spec(template, extended(template.get("spec") or {}, "initContainers", waiting))


def _init_container(master: str) -> dict[str, object]:
    wait = (
        f"err=1;for i in $(seq {INIT_TRIES}); do if nslookup {master}; then err=0 && break; fi;"
        "echo waiting for master; sleep 2; done; exit $err"
    )
    return {
        "name": "init-pytorch",
        "image": INIT_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", wait],
        "resources": {
            "limits": {"cpu": "100m", "memory": "20Mi"},
            "requests": {"cpu": "50m", "memory": "10Mi"},
        },
    }


FRAMEWORK = Framework(
    name="pytorch",
    kind="PyTorchJob",
    plural="pytorchjobs",
    aliases=("torch",),
    replicas_field=FIELD,
    types=TYPES,
    single=(MASTER,),
    container=CONTAINER,
    port_name="pytorchjob-port",
    port=23456,
    restart_policy=RestartPolicy.ON_FAILURE,
    options=("elasticPolicy", "nprocPerNode"),
    environment=_environment,
    outcome=_outcome,
    leader=_leader,
    check=_check,
    decorate=_decorate,
)
