"""MXJob: MXNet's parameter servers (``dist_sync``), BytePS, and TVM's tuning.

The variables are those of the training operator 1.7, the last release with this kind
(``pkg/controller.v1/mxnet/mxnet.go``). Manifests with kind MXNetJob are accepted. Without a
scheduler that operator only notices the end of a single worker; here tuners or workers decide.
"""

from __future__ import annotations

from collections.abc import Iterator

from danlu.training.framework import (
    EnvVar,
    FieldError,
    FieldRef,
    Framework,
    Messages,
    PodTemplate,
    first_replica,
)
from danlu.training.pod_template import compact_json, env_unless_declared, replace_metadata
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology

SCHEDULER = ReplicaType("Scheduler")
SERVER = ReplicaType("Server")
WORKER = ReplicaType("Worker")
TUNER_TRACKER = ReplicaType("TunerTracker")
TUNER_SERVER = ReplicaType("TunerServer")
TUNER = ReplicaType("Tuner")

MESSAGES = Messages(
    restarting="mxjob {name} is restarting because {count} {type} replica(s) failed.",
    failed="mxjob {name} is failed because {count} {type} replica(s) failed.",
)
MODES = ("MXTrain", "MXTune")
ROLE_LABEL = "training.kubeflow.org/job-role"


class MXNetFramework(Framework):
    """Scheduler, servers and workers for training; tracker, servers and tuners for tuning."""

    name = "mxnet"
    kind = "MXJob"
    plural = "mxjobs"
    aliases = ("mx", "mxnetjob")
    modules = ("mxnet",)
    replicas_field = "mxReplicaSpecs"
    spec_options = {"jobMode": {"type": "string", "enum": ["", *MODES]}}
    replica_types = (SCHEDULER, SERVER, WORKER, TUNER_TRACKER, TUNER_SERVER, TUNER)
    messages = dict.fromkeys(replica_types, MESSAGES)
    driver_types = (SCHEDULER, TUNER, WORKER)
    singleton_types = (SCHEDULER,)
    idle_types = (SCHEDULER, SERVER, TUNER_TRACKER, TUNER_SERVER)
    server_types = (SCHEDULER, SERVER, TUNER_TRACKER, TUNER_SERVER)
    container = "mxnet"
    port_name = "mxjob-port"
    port = 9091

    def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
        """Return MX_CONFIG and ps-lite's variables."""
        variables: list[EnvVar] = [
            ("MX_CONFIG", _mx_config(job, replica, topology)),
            *_scheduler_address(job, topology),
            ("DMLC_NUM_SERVER", str(job.replica_count(SERVER))),
            ("DMLC_NUM_WORKER", str(job.replica_count(WORKER))),
            ("DMLC_ROLE", replica.type.lower()),
            ("DMLC_USE_KUBERNETES", "1"),
        ]
        if replica.type == WORKER:
            variables.append(("DMLC_WORKER_ID", str(replica.index)))
        # Without it ps-lite takes the first interface that is up, and fails if that is only lo.
        optional = [("DMLC_NODE_HOST", FieldRef("status.podIP"))]
        return variables + env_unless_declared(job, replica, self.container, optional)

    def leader(self, job: Job) -> ReplicaId:
        """Return the first replica that computes; a scheduler's log says nothing."""
        return first_replica(job, (WORKER, TUNER, SERVER, SCHEDULER))

    def validate(self, job: Job) -> Iterator[FieldError]:
        """Yield an error for servers without a scheduler, and for an invalid mode."""
        yield from super().validate(job)
        if SERVER in job.replicas and SCHEDULER not in job.replicas:
            yield FieldError(
                f"spec.{self.replicas_field}[{SCHEDULER}]",
                "is required if there is a Server",
                "servers and workers find one another through it",
            )
        mode = job.options.get("jobMode", MODES[0])
        if mode not in MODES:
            yield FieldError("spec.jobMode", f"cannot be {mode!r}", f"one of {', '.join(MODES)}")

    def mutate_pod(
        self, job: Job, replica: ReplicaId, topology: Topology, template: PodTemplate
    ) -> PodTemplate:
        """Give the role of master to the servers, as Kubeflow does."""
        metadata = template.get("metadata") or {}
        labels = dict(metadata.get("labels") or {})
        labels.pop(ROLE_LABEL, None)
        if replica.type == SERVER:
            labels[ROLE_LABEL] = "master"
        return replace_metadata(template, {"labels": labels})


def _scheduler_address(job: Job, topology: Topology) -> list[EnvVar]:
    """Return where the scheduler is; without one an empty host and port 0, as in Kubeflow."""
    port, host = "0", ""
    if job.replica_count(SCHEDULER):
        scheduler = ReplicaId(SCHEDULER, 0)
        port, host = str(topology.port(scheduler)), topology.host(scheduler)
    return [("DMLC_PS_ROOT_PORT", port), ("DMLC_PS_ROOT_URI", host)]


def _mx_config(job: Job, replica: ReplicaId, topology: Topology) -> str:
    types = sorted(job.replicas, key=str.lower)
    cluster = {
        type.lower(): [
            {"url": topology.host(member), "port": topology.port(member)}
            for member in job.replica_ids(type)
        ]
        for type in types
    }
    task = {"type": replica.type.lower(), "index": replica.index}
    labels = {type.lower(): _tuner_server_key(job, type) for type in types}
    return compact_json({"cluster": cluster, "labels": labels, "task": task})


def _tuner_server_key(job: Job, type: ReplicaType) -> str:
    metadata = job.replicas[type].template.get("metadata") or {}
    return str((metadata.get("annotations") or {}).get("tuner-server-key", ""))


FRAMEWORK = MXNetFramework()
