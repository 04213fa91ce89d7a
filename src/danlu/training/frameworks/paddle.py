"""PaddleJob: ``paddle.distributed``, collective (workers only) or with parameter servers (masters).

The variables are those of the training operator 1.9
(``pkg/controller.v1/paddlepaddle/envvar.go``), which only ``paddle.distributed.launch`` reads.
After them come those that a plain ``init_parallel_env()`` reads; the launcher gives its processes
its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from danlu.training.framework import FieldRef, Finding, Framework, Tally, Variable, Verdict
from danlu.training.frameworks.pods import unless_given
from danlu.training.frameworks.replicas import (
    at_least_one,
    endpoint,
    first_present,
    leader,
    members,
    total,
    verdict,
)
from danlu.training.types import Job, ReplicaId, ReplicaType, RestartPolicy, Topology

__all__ = ["FRAMEWORK"]

MASTER = ReplicaType("Master")
WORKER = ReplicaType("Worker")
TYPES = (MASTER, WORKER)
FIELD = "paddleReplicaSpecs"
CONTAINER = "paddle"
OWN_ADDRESS = FieldRef("status.podIP")


def _environment(job: Job, replica: ReplicaId, topology: Topology) -> list[Variable]:
    variables: list[Variable] = [
        ("PYTHONUNBUFFERED", "1"),
        ("PADDLE_JOB_ID", job.name),
        ("PADDLE_NNODES", str(total(job))),
        *_meeting_point(job, replica, topology),
    ]
    if MASTER in job.replicas:
        role = "PADDLE_SERVER_NUM" if replica.type == MASTER else "PADDLE_TRAINER_NUM"
        variables.append((role, "1"))
    ours = _collective(job, replica, topology) if MASTER not in job.replicas else []
    return variables + unless_given(job, replica, CONTAINER, [("POD_IP", OWN_ADDRESS), *ours])


def _meeting_point(job: Job, replica: ReplicaId, topology: Topology) -> list[Variable]:
    """``PADDLE_MASTER``; the replica it stands for must recognise its own address in it."""
    first = ReplicaId(first_present(job, MASTER, WORKER), 0)
    if replica == first:
        own = f"$(POD_IP_DUMMY):{topology.port(first)}"
        return [("POD_IP_DUMMY", OWN_ADDRESS), ("PADDLE_MASTER", own)]
    return [("PADDLE_MASTER", endpoint(topology, first))]


def _collective(job: Job, replica: ReplicaId, topology: Topology) -> list[Variable]:
    all = members(job, WORKER)
    return [
        ("PADDLE_TRAINER_ID", str(replica.index)),
        ("PADDLE_TRAINERS_NUM", str(len(all))),
        ("PADDLE_TRAINER_ENDPOINTS", ",".join(endpoint(topology, one) for one in all)),
        ("PADDLE_CURRENT_ENDPOINT", endpoint(topology, replica)),
    ]


def _outcome(job: Job, tallies: Mapping[ReplicaType, Tally]) -> Verdict | None:
    return verdict(TYPES, tallies, driver=first_present(job, MASTER, WORKER))


def _check(job: Job) -> Iterator[Finding]:
    yield from at_least_one(job, first_present(job, MASTER, WORKER), field=FIELD)
    policy = job.elastic_policy
    low, high = (policy.min_replicas, policy.max_replicas) if policy else (None, None)
    if low is not None and high is not None and low > high:
        yield Finding("spec.elasticPolicy.minReplicas", f"{low} is more than maxReplicas, {high}")


def _leader(job: Job) -> ReplicaId:
    return leader(job, MASTER, WORKER)


FRAMEWORK = Framework(
    name="paddle",
    kind="PaddleJob",
    plural="paddlejobs",
    aliases=("paddlepaddle",),
    replicas_field=FIELD,
    types=TYPES,
    container=CONTAINER,
    port_name="master",
    port=36543,
    restart_policy=RestartPolicy.ON_FAILURE,
    options=("elasticPolicy",),
    environment=_environment,
    outcome=_outcome,
    leader=_leader,
    check=_check,
)
