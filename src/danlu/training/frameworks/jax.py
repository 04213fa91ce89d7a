"""JAXJob: ``jax.distributed`` with worker 0 as the coordinator.

The variables are those of the training operator 1.9 (``pkg/controller.v1/jax/envvar.go``), then
those of Kubeflow Trainer 2. Of all these JAX reads only JAX_COORDINATOR_ADDRESS: a script gives
``jax.distributed.initialize`` the number of processes and its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from danlu.training.framework import Finding, Framework, Tally, Variable, Verdict
from danlu.training.frameworks.pods import unless_given
from danlu.training.frameworks.replicas import at_least_one, endpoint, leader, total, verdict
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology

__all__ = ["FRAMEWORK"]

WORKER = ReplicaType("Worker")
TYPES = (WORKER,)
FIELD = "jaxReplicaSpecs"
CONTAINER = "jax"


def _environment(job: Job, replica: ReplicaId, topology: Topology) -> list[Variable]:
    first = ReplicaId(WORKER, 0)
    size, rank = str(total(job)), str(replica.index)
    ours = [
        ("JAX_COORDINATOR_ADDRESS", endpoint(topology, first)),
        ("JAX_NUM_PROCESSES", size),
        ("JAX_PROCESS_ID", rank),
    ]
    return [
        ("PYTHONUNBUFFERED", "1"),
        ("COORDINATOR_PORT", str(topology.port(first))),
        ("COORDINATOR_ADDRESS", topology.host(first)),
        ("NUM_PROCESSES", size),
        ("PROCESS_ID", rank),
        *unless_given(job, replica, CONTAINER, ours),
    ]


def _outcome(job: Job, tallies: Mapping[ReplicaType, Tally]) -> Verdict | None:
    return verdict(TYPES, tallies, driver=WORKER)


def _check(job: Job) -> Iterator[Finding]:
    return at_least_one(job, WORKER, field=FIELD)


def _leader(job: Job) -> ReplicaId:
    return leader(job, WORKER)


FRAMEWORK = Framework(
    name="jax",
    kind="JAXJob",
    plural="jaxjobs",
    replicas_field=FIELD,
    types=TYPES,
    required=(WORKER,),
    container=CONTAINER,
    port_name="jaxjob-port",
    port=6666,
    environment=_environment,
    outcome=_outcome,
    leader=_leader,
    check=_check,
)
