"""LightGBMJob, a kind of job that danlu does not have, in one file.

Every LightGBM machine gets the list of all machines and connects to each of the others. It finds
its own entry by address and port, and must listen on that port. The list is read at the start, so
the number of machines is changed while the job is suspended.
"""

from collections.abc import Iterator

from danlu.training.framework import (
    CountsByType,
    EnvVar,
    FieldError,
    Framework,
    Verdict,
    evaluate_counts,
)
from danlu.training.pod_template import env_unless_declared
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology

WORKER = ReplicaType("Worker")
TREE_LEARNERS = ("data", "feature", "voting")


class LightGBMFramework(Framework):
    """Workers that train the same model together."""

    name = "lightgbm"
    kind = "LightGBMJob"
    plural = "lightgbmjobs"
    aliases = ("lgbm",)
    replicas_field = "lightgbmReplicaSpecs"
    spec_options = {"treeLearner": {"type": "string", "enum": [*TREE_LEARNERS]}}
    modules = ("lightgbm",)
    replica_types = (WORKER,)
    driver_types = (WORKER,)
    required_types = (WORKER,)
    scaled_type = WORKER
    container = "lightgbm"
    port_name = "lightgbm-port"
    port = 12400

    def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
        """Return the variables that ``train.py`` passes to LightGBM as parameters."""
        machines = [
            f"{_host(topology, worker)}:{topology.port(worker)}"
            for worker in job.replica_ids(WORKER)
        ]
        variables: list[EnvVar] = [
            ("LIGHTGBM_MACHINES", ",".join(machines)),
            ("LIGHTGBM_NUM_MACHINES", str(job.total_replicas)),
            ("LIGHTGBM_LOCAL_LISTEN_PORT", str(topology.port(replica))),
            ("LIGHTGBM_RANK", str(replica.index)),
        ]
        # Variables that the manifest sets take precedence.
        return env_unless_declared(job, replica, self.container, variables)

    def evaluate(self, job: Job, counts: CountsByType) -> Verdict | None:
        """Let the job succeed with its first worker: all of them end with the same model."""
        done = counts[WORKER].succeeded > 0
        return evaluate_counts(self.replica_types, counts, driver=WORKER, done=done)

    def validate(self, job: Job) -> Iterator[FieldError]:
        """Check ``spec.treeLearner``, and the number of workers as by default."""
        yield from super().validate(job)
        learner = job.options.get("treeLearner", "data")
        if learner not in TREE_LEARNERS:
            hint = f"one of {', '.join(TREE_LEARNERS)}"
            yield FieldError("spec.treeLearner", f"cannot be {learner!r}", hint)


def _host(topology: Topology, replica: ReplicaId) -> str:
    """Return a host that LightGBM finds on a local interface: of 127/8, only 127.0.0.1 is."""
    host = topology.host(replica)
    return "127.0.0.1" if host.startswith("127.") else host


FRAMEWORK = LightGBMFramework()
