"""XGBoostJob: XGBoost's collective with the tracker next to the master, and LightGBM's host lists.

The variables are those of the training operator 1.9 (``pkg/controller.v1/xgboost/xgboost.go``),
followed by the names that XGBoost's tracker and ``CommunicatorContext`` use for the same values.
"""

from __future__ import annotations

from danlu.training.framework import EnvVar, Framework
from danlu.training.pod_template import env_unless_declared
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology

MASTER = ReplicaType("Master")
WORKER = ReplicaType("Worker")


class XGBoostFramework(Framework):
    """A master, which has rank 0 and runs the tracker, and workers."""

    name = "xgboost"
    kind = "XGBoostJob"
    plural = "xgboostjobs"
    aliases = ("xgb",)
    modules = ("xgboost",)
    replicas_field = "xgbReplicaSpecs"
    replica_types = (MASTER, WORKER)
    driver_types = (MASTER,)
    required_types = (MASTER,)
    singleton_types = (MASTER,)
    node_types = (MASTER, WORKER)
    ml_policy = "xgboost"
    container = "xgboost"
    port_name = "xgboostjob-port"
    port = 9999
    single_port = True

    def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
        """Return Kubeflow's variables, then XGBoost's own unless the manifest sets them."""
        master = ReplicaId(MASTER, 0)
        host, port = topology.host(master), str(topology.port(master))
        size = str(job.total_replicas)
        masters = job.replica_count(MASTER) if replica.type == WORKER else 0
        rank = str(replica.index + masters)
        return [
            ("MASTER_PORT", port),
            ("MASTER_ADDR", host),
            ("WORLD_SIZE", size),
            ("RANK", rank),
            ("PYTHONUNBUFFERED", "1"),
            *_worker_addresses(job, topology),
            *env_unless_declared(
                job,
                replica,
                self.container,
                [
                    ("DMLC_TRACKER_URI", host),
                    ("DMLC_TRACKER_PORT", port),
                    ("DMLC_NUM_WORKER", size),
                    ("DMLC_TASK_ID", rank),
                ],
            ),
        ]


def _worker_addresses(job: Job, topology: Topology) -> list[EnvVar]:
    """Return the workers' hosts, and the one port that all of them listen on (LightGBM)."""
    workers = job.replica_ids(WORKER)
    if not workers:
        return []
    return [
        ("WORKER_PORT", str(topology.port(workers[0]))),
        ("WORKER_ADDRS", ",".join(topology.host(worker) for worker in workers)),
    ]


FRAMEWORK = XGBoostFramework()
