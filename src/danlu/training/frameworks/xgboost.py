"""XGBoostJob: XGBoost's collective, with the tracker beside the master (and LightGBM's lists).

The variables are those of the training operator 1.9 (``pkg/controller.v1/xgboost/xgboost.go``);
after them come the names that XGBoost's tracker and ``CommunicatorContext`` have for the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from danlu.training.framework import Finding, Framework, Tally, Variable, Verdict
from danlu.training.frameworks.pods import unless_given
from danlu.training.frameworks.replicas import count, exactly_one, leader, members, total, verdict
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology

__all__ = ["FRAMEWORK"]

MASTER = ReplicaType("Master")
WORKER = ReplicaType("Worker")
TYPES = (MASTER, WORKER)
FIELD = "xgbReplicaSpecs"
CONTAINER = "xgboost"


def _environment(job: Job, replica: ReplicaId, topology: Topology) -> list[Variable]:
    master = ReplicaId(MASTER, 0)
    host, port = topology.host(master), str(topology.port(master))
    size = str(total(job))
    rank = str(replica.index + (count(job, MASTER) if replica.type == WORKER else 0))
    ours = [
        ("DMLC_TRACKER_URI", host),
        ("DMLC_TRACKER_PORT", port),
        ("DMLC_NUM_WORKER", size),
        ("DMLC_TASK_ID", rank),
    ]
    return [
        ("MASTER_PORT", port),
        ("MASTER_ADDR", host),
        ("WORLD_SIZE", size),
        ("RANK", rank),
        ("PYTHONUNBUFFERED", "1"),
        *_workers(job, topology),
        *unless_given(job, replica, CONTAINER, ours),
    ]


def _workers(job: Job, topology: Topology) -> list[Variable]:
    """The workers' names, and the one port that all of them listen on (LightGBM)."""
    workers = members(job, WORKER)
    if not workers:
        return []
    return [
        ("WORKER_PORT", str(topology.port(workers[0]))),
        ("WORKER_ADDRS", ",".join(topology.host(one) for one in workers)),
    ]


def _outcome(job: Job, tallies: Mapping[ReplicaType, Tally]) -> Verdict | None:
    return verdict(TYPES, tallies, driver=MASTER)


def _check(job: Job) -> Iterator[Finding]:
    return exactly_one(job, MASTER, field=FIELD)


def _leader(job: Job) -> ReplicaId:
    return leader(job, MASTER)


FRAMEWORK = Framework(
    name="xgboost",
    kind="XGBoostJob",
    plural="xgboostjobs",
    aliases=("xgb",),
    replicas_field=FIELD,
    types=TYPES,
    required=(MASTER,),
    single=(MASTER,),
    container=CONTAINER,
    port_name="xgboostjob-port",
    port=9999,
    common_port=True,
    environment=_environment,
    outcome=_outcome,
    leader=_leader,
    check=_check,
)
