"""TFJob: ``tf.distribute`` and parameter servers through ``TF_CONFIG``.

The variable is that of the training operator 1.9 (``pkg/controller.v1/tensorflow/tensorflow.go``),
byte for byte, in its ordinary and in its sparse (``enableDynamicWorker``) form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from danlu.training.framework import Finding, Framework, Tally, Variable, Verdict
from danlu.training.frameworks.pods import compact_json
from danlu.training.frameworks.replicas import (
    at_least_one,
    endpoint,
    exactly_one,
    first_present,
    leader,
    members,
    total,
    verdict,
)
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology

__all__ = ["FRAMEWORK"]

CHIEF = ReplicaType("Chief")
EVALUATOR = ReplicaType("Evaluator")
MASTER = ReplicaType("Master")
PS = ReplicaType("PS")
WORKER = ReplicaType("Worker")
TYPES = (CHIEF, EVALUATOR, MASTER, PS, WORKER)
FIELD = "tfReplicaSpecs"
ALL_WORKERS = "AllWorkers"


def _environment(job: Job, replica: ReplicaId, topology: Topology) -> list[Variable]:
    """``TF_CONFIG``, which a job of a single replica must not have."""
    if total(job) == 1:
        return []
    cluster = {
        type.lower(): [endpoint(topology, one, qualified=True) for one in members(job, type)]
        for type in sorted(job.replicas, key=str.lower)
    }
    task = {"type": replica.type.lower(), "index": replica.index}
    config: dict[str, Any] = {"cluster": cluster, "task": task, "environment": "cloud"}
    if job.options.get("enableDynamicWorker"):
        config = {"cluster": _sparse(cluster, replica), "task": task}
    return [("TF_CONFIG", compact_json(config))]


def _sparse(cluster: Mapping[str, list[str]], replica: ReplicaId) -> dict[str, Any]:
    """What a member of a changing cluster may know: workers themselves and every server.

    A worker of a job without servers gets ``null``, as Go writes a slice that was never made.
    """
    if replica.type == PS:
        return {"worker": {}, "ps": [cluster["ps"][replica.index]]}
    if replica.type == WORKER:
        own = {str(replica.index): cluster["worker"][replica.index]}
        return {"worker": own, "ps": cluster.get("ps")}
    return {"worker": {}, "ps": []}


def _outcome(job: Job, tallies: Mapping[ReplicaType, Tally]) -> Verdict | None:
    """The chief's end is the job's; without one worker 0's, or all workers' (``AllWorkers``).

    With ``enableDynamicWorker`` workers may fail, until there is none left to do the work: the
    operator waits for ever then.
    """
    driver = first_present(job, CHIEF, MASTER, WORKER)
    workers = tallies.get(WORKER, Tally())
    done = None
    if driver == WORKER and job.success_policy != ALL_WORKERS and workers.first_succeeded:
        done = True
    gone = driver == WORKER and workers.failed + workers.succeeded >= workers.expected
    forgiven = (WORKER,) if job.options.get("enableDynamicWorker") and not gone else ()
    return verdict(TYPES, tallies, driver=driver, done=done, forgiven=forgiven)


def _check(job: Job) -> Iterator[Finding]:
    yield from exactly_one(job, CHIEF, field=FIELD)
    yield from exactly_one(job, MASTER, field=FIELD)
    if CHIEF in job.replicas and MASTER in job.replicas:
        yield Finding(
            f"spec.{FIELD}[{MASTER}]",
            "cannot stand beside Chief",
            "keep one of the two: they mean the same",
        )
    if not {CHIEF, MASTER, WORKER} & set(job.replicas):
        yield Finding(
            f"spec.{FIELD}", "has nothing whose end is the job's", "add a Chief or Workers"
        )
    if first_present(job, CHIEF, MASTER, WORKER) == WORKER:
        yield from at_least_one(job, WORKER, field=FIELD)
    if job.success_policy not in ("", ALL_WORKERS):
        yield Finding(
            "spec.successPolicy", f"cannot be {job.success_policy!r}", f"{ALL_WORKERS}, or nothing"
        )
    dynamic = job.options.get("enableDynamicWorker", False)
    if not isinstance(dynamic, bool):
        yield Finding("spec.enableDynamicWorker", f"cannot be {dynamic!r}", "true or false")


def _leader(job: Job) -> ReplicaId:
    return leader(job, CHIEF, MASTER, WORKER)


FRAMEWORK = Framework(
    name="tensorflow",
    kind="TFJob",
    plural="tfjobs",
    aliases=("tf",),
    replicas_field=FIELD,
    types=TYPES,
    single=(CHIEF, MASTER),
    container="tensorflow",
    port_name="tfjob-port",
    port=2222,
    options=("successPolicy", "enableDynamicWorker"),
    everywhere=False,
    environment=_environment,
    outcome=_outcome,
    leader=_leader,
    check=_check,
)
