"""MXJob: MXNet's parameter servers (``dist_sync``), BytePS, and TVM's tuning.

The variables are those of the training operator 1.7, the last to know it
(``pkg/controller.v1/mxnet/mxnet.go``). Files that say MXNetJob are accepted. Where there is no
scheduler the operator sees no end but that of a single worker; here tuners or workers decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from danlu.training.framework import (
    FieldRef,
    Finding,
    Framework,
    Tally,
    Template,
    Variable,
    Verdict,
)
from danlu.training.frameworks.pods import compact_json, unless_given, with_metadata
from danlu.training.frameworks.replicas import (
    at_least_one,
    count,
    exactly_one,
    first_present,
    leader,
    members,
    verdict,
)
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology

__all__ = ["FRAMEWORK"]

SCHEDULER = ReplicaType("Scheduler")
SERVER = ReplicaType("Server")
WORKER = ReplicaType("Worker")
TUNER_TRACKER = ReplicaType("TunerTracker")
TUNER_SERVER = ReplicaType("TunerServer")
TUNER = ReplicaType("Tuner")
TYPES = (SCHEDULER, SERVER, WORKER, TUNER_TRACKER, TUNER_SERVER, TUNER)
FIELD = "mxReplicaSpecs"
CONTAINER = "mxnet"
MODES = ("MXTrain", "MXTune")
ROLE = "training.kubeflow.org/job-role"


def _environment(job: Job, replica: ReplicaId, topology: Topology) -> list[Variable]:
    variables: list[Variable] = [
        ("MX_CONFIG", _config(job, replica, topology)),
        *_root(job, topology),
        ("DMLC_NUM_SERVER", str(count(job, SERVER))),
        ("DMLC_NUM_WORKER", str(count(job, WORKER))),
        ("DMLC_ROLE", replica.type.lower()),
        ("DMLC_USE_KUBERNETES", "1"),
    ]
    if replica.type == WORKER:
        variables.append(("DMLC_WORKER_ID", str(replica.index)))
    # Without it ps-lite takes the first interface that is up, and fails where that is only lo.
    ours = [("DMLC_NODE_HOST", FieldRef("status.podIP"))]
    return variables + unless_given(job, replica, CONTAINER, ours)


def _root(job: Job, topology: Topology) -> list[Variable]:
    """Where the scheduler is: port 0 of nowhere, as in Kubeflow, where there is none."""
    port, host = "0", ""
    if count(job, SCHEDULER):
        first = ReplicaId(SCHEDULER, 0)
        port, host = str(topology.port(first)), topology.host(first)
    return [("DMLC_PS_ROOT_PORT", port), ("DMLC_PS_ROOT_URI", host)]


def _config(job: Job, replica: ReplicaId, topology: Topology) -> str:
    types = sorted(job.replicas, key=str.lower)
    cluster = {
        type.lower(): [
            {"url": topology.host(one), "port": topology.port(one)} for one in members(job, type)
        ]
        for type in types
    }
    task = {"type": replica.type.lower(), "index": replica.index}
    labels = {type.lower(): _tuner_key(job, type) for type in types}
    return compact_json({"cluster": cluster, "labels": labels, "task": task})


def _tuner_key(job: Job, type: ReplicaType) -> str:
    metadata = job.replicas[type].template.get("metadata") or {}
    return str((metadata.get("annotations") or {}).get("tuner-server-key", ""))


def _driver(job: Job) -> ReplicaType:
    return first_present(job, SCHEDULER, TUNER, WORKER)


def _outcome(job: Job, tallies: Mapping[ReplicaType, Tally]) -> Verdict | None:
    return verdict(TYPES, tallies, driver=_driver(job))


def _check(job: Job) -> Iterator[Finding]:
    yield from exactly_one(job, SCHEDULER, field=FIELD)
    yield from at_least_one(job, _driver(job), field=FIELD)
    if SERVER in job.replicas and SCHEDULER not in job.replicas:
        yield Finding(
            f"spec.{FIELD}[{SCHEDULER}]",
            "is needed where there is a Server",
            "servers and workers find one another through it",
        )
    mode = job.options.get("jobMode", MODES[0])
    if mode not in MODES:
        yield Finding("spec.jobMode", f"cannot be {mode!r}", f"one of {', '.join(MODES)}")


def _leader(job: Job) -> ReplicaId:
    return leader(job, WORKER, TUNER, SERVER, SCHEDULER)


def _decorate(job: Job, replica: ReplicaId, topology: Topology, template: Template) -> Template:
    """On a cluster the role of master is the servers', as in Kubeflow."""
    metadata = template.get("metadata") or {}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != ROLE}
    if replica.type == SERVER:
        labels[ROLE] = "master"
    return with_metadata(template, {"labels": labels})


FRAMEWORK = Framework(
    name="mxnet",
    kind="MXJob",
    plural="mxjobs",
    aliases=("mx", "mxnetjob"),
    replicas_field=FIELD,
    types=TYPES,
    single=(SCHEDULER,),
    container=CONTAINER,
    port_name="mxjob-port",
    port=9091,
    options=("jobMode",),
    environment=_environment,
    outcome=_outcome,
    leader=_leader,
    check=_check,
    decorate=_decorate,
)
