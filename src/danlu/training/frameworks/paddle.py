"""PaddleJob: ``paddle.distributed``, collective (workers only) or with parameter servers (masters).

The variables are those of the training operator 1.9
(``pkg/controller.v1/paddlepaddle/envvar.go``), which ``paddle.distributed.launch`` reads, and so a
script is started by that. After them come more of the launcher's own: the first replica must
recognise its address to serve the others, replicas may share a working directory, and worker 1 is
rank 1 rather than whoever came second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from danlu.training.framework import FieldRef, Finding, Framework, Tally, Variable, Verdict
from danlu.training.frameworks.pods import unless_given
from danlu.training.frameworks.replicas import (
    at_least_one,
    endpoint,
    first_present,
    leader,
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
    ours: list[Variable] = [("POD_IP", OWN_ADDRESS), ("PADDLE_LOG_DIR", f"log/{replica}")]
    if MASTER not in job.replicas:
        ours.append(("PADDLE_RANK", str(replica.index)))
    return variables + unless_given(job, replica, CONTAINER, ours)


def _meeting_point(job: Job, replica: ReplicaId, topology: Topology) -> list[Variable]:
    """``PADDLE_MASTER``; the replica it stands for must recognise its own address in it."""
    first = ReplicaId(first_present(job, MASTER, WORKER), 0)
    if replica == first:
        own = f"$(POD_IP_DUMMY):{topology.port(first)}"
        return [("POD_IP_DUMMY", OWN_ADDRESS), ("PADDLE_MASTER", own)]
    return [("PADDLE_MASTER", endpoint(topology, first))]


def _launch(job: Job, type: ReplicaType, command: Sequence[str]) -> Sequence[str]:
    """``python train.py`` by way of the launcher; whatever else is run as it is."""
    if len(command) < 2 or not command[1].endswith(".py"):
        return command
    return (command[0], "-m", "paddle.distributed.launch", *command[1:])


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
    launch=_launch,
)
