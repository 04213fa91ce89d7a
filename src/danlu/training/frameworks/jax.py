"""JAXJob: ``jax.distributed``, with worker 0 as the coordinator.

The variables are those of the training operator 1.9 (``pkg/controller.v1/jax/envvar.go``), followed
by those of Kubeflow Trainer 2. JAX itself reads only JAX_COORDINATOR_ADDRESS: a script passes the
number of processes and its own index to ``jax.distributed.initialize``.
"""

from __future__ import annotations

from danlu.training.framework import QUALIFIED_MESSAGES, EnvVar, Framework, endpoint
from danlu.training.pod_template import env_unless_declared
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology

WORKER = ReplicaType("Worker")


class JaxFramework(Framework):
    """A group of workers."""

    name = "jax"
    kind = "JAXJob"
    plural = "jaxjobs"
    modules = ("flax", "jax")
    replicas_field = "jaxReplicaSpecs"
    replica_types = (WORKER,)
    driver_types = (WORKER,)
    required_types = (WORKER,)
    scaled_type = WORKER
    node_types = (WORKER,)
    ml_policy = "jax"
    messages = {WORKER: QUALIFIED_MESSAGES}
    container = "jax"
    port_name = "jaxjob-port"
    port = 6666
    thread_variables = ("NPROC",)  # of XLA: xla/pjrt/cpu/cpu_client.cc, DefaultThreadPoolSize

    def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
        """Return Kubeflow's variables, then JAX's own unless the manifest sets them."""
        first = ReplicaId(WORKER, 0)
        size, rank = str(job.total_replicas), str(replica.index)
        return [
            ("PYTHONUNBUFFERED", "1"),
            ("COORDINATOR_PORT", str(topology.port(first))),
            ("COORDINATOR_ADDRESS", topology.host(first)),
            ("NUM_PROCESSES", size),
            ("PROCESS_ID", rank),
            *env_unless_declared(
                job,
                replica,
                self.container,
                [
                    ("JAX_COORDINATOR_ADDRESS", endpoint(topology, first)),
                    ("JAX_NUM_PROCESSES", size),
                    ("JAX_PROCESS_ID", rank),
                ],
            ),
        ]


FRAMEWORK = JaxFramework()
