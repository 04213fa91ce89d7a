"""PaddleJob: ``paddle.distributed``, collective (workers only) or with parameter servers (masters).

The variables are those of the training operator 1.9 (``pkg/controller.v1/paddlepaddle/envvar.go``).
``paddle.distributed.launch`` reads them, so scripts are started through it. More of the launcher's
own variables follow: the first replica must recognise its own address to serve the others, replicas
may share a working directory, and worker 1 must be rank 1 rather than whichever replica connects
second.
"""

from __future__ import annotations

from collections.abc import Sequence

from danlu.training.framework import (
    QUALIFIED_MESSAGES,
    EnvVar,
    FieldRef,
    Framework,
    endpoint,
)
from danlu.training.pod_template import env_unless_declared
from danlu.training.types import Job, ReplicaId, ReplicaType, RestartPolicy, Topology

MASTER = ReplicaType("Master")
WORKER = ReplicaType("Worker")
POD_IP = FieldRef("status.podIP")


class PaddleFramework(Framework):
    """Workers, and masters that serve parameters to them."""

    name = "paddle"
    kind = "PaddleJob"
    plural = "paddlejobs"
    aliases = ("paddlepaddle",)
    modules = ("paddle",)
    replicas_field = "paddleReplicaSpecs"
    spec_options = {"elasticPolicy": {}}
    replica_types = (MASTER, WORKER)
    driver_types = (MASTER, WORKER)
    scaled_type = WORKER
    node_types = (WORKER,)
    messages = {WORKER: QUALIFIED_MESSAGES}
    restart_policy = RestartPolicy.ON_FAILURE
    container = "paddle"
    port_name = "master"
    port = 36543

    def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
        """Return Kubeflow's variables, then the launcher's own unless the manifest sets them."""
        variables: list[EnvVar] = [
            ("PYTHONUNBUFFERED", "1"),
            ("PADDLE_JOB_ID", job.name),
            ("PADDLE_NNODES", str(job.total_replicas)),
            *self._rendezvous_endpoint(job, replica, topology),
        ]
        if MASTER in job.replicas:
            role = "PADDLE_SERVER_NUM" if replica.type == MASTER else "PADDLE_TRAINER_NUM"
            variables.append((role, "1"))
        optional: list[EnvVar] = [("POD_IP", POD_IP), ("PADDLE_LOG_DIR", f"log/{replica}")]
        if MASTER not in job.replicas:
            optional.append(("PADDLE_RANK", str(replica.index)))
        return variables + env_unless_declared(job, replica, self.container, optional)

    def _rendezvous_endpoint(
        self, job: Job, replica: ReplicaId, topology: Topology
    ) -> list[EnvVar]:
        """Return ``PADDLE_MASTER``; the replica it names must recognise its own address in it."""
        first = ReplicaId(self.driver_type(job), 0)
        if replica == first:
            own = f"$(POD_IP_DUMMY):{topology.port(first)}"
            return [("POD_IP_DUMMY", POD_IP), ("PADDLE_MASTER", own)]
        return [("PADDLE_MASTER", endpoint(topology, first))]

    def wrap_command(self, job: Job, type: ReplicaType, command: Sequence[str]) -> Sequence[str]:
        """Start ``python train.py`` and ``python -m`` through Paddle's launcher."""
        if len(command) > 2 and command[1] == "-m" and not command[2].startswith("paddle."):
            # The launcher has no option -m, but runs any program whose name is not a script's.
            return (command[0], "-m", "paddle.distributed.launch", *command)
        if len(command) < 2 or not command[1].endswith(".py"):
            return command
        return (command[0], "-m", "paddle.distributed.launch", *command[1:])


FRAMEWORK = PaddleFramework()
