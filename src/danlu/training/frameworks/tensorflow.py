"""TFJob: ``tf.distribute`` and parameter servers through ``TF_CONFIG``.

The variable is byte for byte that of the training operator 1.9
(``pkg/controller.v1/tensorflow/tensorflow.go``), in its normal and its sparse
(``enableDynamicWorker``) form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from danlu.training.framework import (
    CountsByType,
    EnvVar,
    FieldError,
    Framework,
    Messages,
    ReplicaCounts,
    Verdict,
    endpoint,
    evaluate_counts,
)
from danlu.training.pod_template import compact_json
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology

CHIEF = ReplicaType("Chief")
EVALUATOR = ReplicaType("Evaluator")
MASTER = ReplicaType("Master")
PS = ReplicaType("PS")
WORKER = ReplicaType("Worker")

ALL_WORKERS = "AllWorkers"

MESSAGES = Messages(
    running="TFJob {namespace}/{name} is running.",
    succeeded="TFJob {namespace}/{name} successfully completed.",
    restarting="job {name} is restarting because {type} replica(s) failed.",
    failed="TFJob {namespace}/{name} has failed because {count} {type} replica(s) failed.",
)


class TensorFlowFramework(Framework):
    """A chief (or master), workers, parameter servers and an evaluator, all of them optional."""

    name = "tensorflow"
    kind = "TFJob"
    plural = "tfjobs"
    aliases = ("tf",)
    modules = ("tensorflow",)
    replicas_field = "tfReplicaSpecs"
    spec_options = {"successPolicy": {}, "enableDynamicWorker": {"type": "boolean"}}
    replica_types = (CHIEF, EVALUATOR, MASTER, PS, WORKER)
    messages = dict.fromkeys(replica_types, MESSAGES)
    driver_types = (CHIEF, MASTER, WORKER)
    singleton_types = (CHIEF, MASTER)
    node_types = (CHIEF, MASTER, WORKER)
    idle_types = (PS,)
    server_types = (PS,)
    container = "tensorflow"
    port_name = "tfjob-port"
    port = 2222
    env_in_all_containers = False
    # The pool for one operation (tensorflow/core/common_runtime/local_device.cc). The pool for
    # independent operations keeps its size, because operations of parameter servers block in it.
    thread_variables = ("TF_NUM_INTRAOP_THREADS",)

    def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
        """Return ``TF_CONFIG``, which a job with a single replica must not have."""
        if job.total_replicas == 1:
            return []
        cluster = {
            type.lower(): [
                endpoint(topology, member, qualified=True) for member in job.replica_ids(type)
            ]
            for type in sorted(job.replicas, key=str.lower)
        }
        task = {"type": replica.type.lower(), "index": replica.index}
        config: dict[str, Any] = {"cluster": cluster, "task": task, "environment": "cloud"}
        if job.options.get("enableDynamicWorker"):
            config = {"cluster": _sparse_cluster(cluster, replica), "task": task}
        return [("TF_CONFIG", compact_json(config))]

    def evaluate(self, job: Job, counts: CountsByType) -> Verdict | None:
        """Return the verdict: the chief decides, else worker 0, or all workers (``AllWorkers``).

        With ``enableDynamicWorker`` workers may fail until none is left to do the work; Kubeflow's
        operator then waits forever.
        """
        driver = self.driver_type(job)
        workers = counts.get(WORKER, ReplicaCounts())
        done = None
        if driver == WORKER and job.success_policy != ALL_WORKERS and workers.first_succeeded:
            done = True
        all_ended = driver == WORKER and workers.failed + workers.succeeded >= workers.expected
        dynamic = job.options.get("enableDynamicWorker") and not all_ended
        return evaluate_counts(
            self.replica_types,
            counts,
            driver=driver,
            done=done,
            tolerated=(WORKER,) if dynamic else (),
        )

    def validate(self, job: Job) -> Iterator[FieldError]:
        """Yield an error if no type can end the job, or two can, and for invalid options."""
        yield from super().validate(job)
        if CHIEF in job.replicas and MASTER in job.replicas:
            yield FieldError(
                f"spec.{self.replicas_field}[{MASTER}]",
                "cannot be combined with Chief",
                "keep one of the two: they mean the same",
            )
        if not set(self.driver_types) & set(job.replicas):
            message = "has no replica type that can end the job"
            yield FieldError(f"spec.{self.replicas_field}", message, "add a Chief or Workers")
        if job.success_policy not in ("", ALL_WORKERS):
            message = f"cannot be {job.success_policy!r}"
            yield FieldError("spec.successPolicy", message, f"{ALL_WORKERS}, or nothing")
        dynamic = job.options.get("enableDynamicWorker", False)
        if not isinstance(dynamic, bool):
            yield FieldError("spec.enableDynamicWorker", f"cannot be {dynamic!r}", "true or false")


def _sparse_cluster(cluster: Mapping[str, list[str]], replica: ReplicaId) -> dict[str, Any]:
    """Return what a member of a changing cluster may know: itself, and workers every server.

    A worker of a job without servers gets ``null``, which is how Go writes a nil slice.
    """
    if replica.type == PS:
        return {"worker": {}, "ps": [cluster["ps"][replica.index]]}
    if replica.type == WORKER:
        worker = {str(replica.index): cluster["worker"][replica.index]}
        return {"worker": worker, "ps": cluster.get("ps")}
    return {"worker": {}, "ps": []}


FRAMEWORK = TensorFlowFramework()
